"""Sends what people asked for of their tasks' files (AGENT-12).

Owns the loop over the orders that heartbeats bring: lists first, then one piece of each download in turn,
so that a long file holds up no short one. Keeps nothing: a piece goes on where the server says, after a
restart of either side too. Which files may be read is `agent/models/files.py`'s.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from agent.config import Settings
from agent.contract.messages import FileAnswer, FileOrder, FileReply
from agent.contract.states import FileKind
from agent.errors import ServerRefused, ServerUnreachable
from agent.models.files import Piece, list_entries, read_piece
from agent.models.paths import PathRefused

log = logging.getLogger("agent.link")
AFTER_SILENCE_S = 1.0


class SendPiece(Protocol):
    """`agent.link.client.ServerClient.file_piece`."""

    def __call__(
        self, incarnation: str, request_id: str, piece: Piece, sha256: str
    ) -> Awaitable[FileReply]: ...


class FileSender:
    """`take` what a heartbeat brought; `run` sends for ever."""

    def __init__(
        self,
        settings: Settings,
        incarnation: str,
        *,
        send_piece: SendPiece,
        send_answer: Callable[[FileAnswer], Awaitable[FileReply]],
    ) -> None:
        self._rules = settings.path_rules
        self._incarnation = incarnation
        self._send_piece = send_piece
        self._send_answer = send_answer
        self._never = settings.kept_paths
        self._orders: dict[str, FileOrder] = {}
        self._refused: set[str] = set()  # by the server, while it still lists them
        self._news = asyncio.Event()

    def take(self, orders: list[FileOrder]) -> None:
        """The orders that are open now. One in work goes on where it stands: it is further than what the
        server knew when it answered."""
        listed = {order.request_id: order for order in orders}
        self._refused &= set(listed)
        self._orders = {
            name: self._orders.get(name, order) for name, order in listed.items() if name not in self._refused
        }
        if self._orders:
            self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._orders and await self.round():
                pass

    async def round(self) -> bool:
        """One step of each order; False where the server does not answer: then a pause is due."""
        for order in sorted(self._orders.values(), key=lambda order: order.kind is not FileKind.LIST):
            if order.request_id not in self._orders:
                continue
            try:
                reply = await self._step(order)
            except ServerUnreachable as error:
                log.debug("file request %s waits: %s", order.request_id, error)
                self._news.set()
                await asyncio.sleep(AFTER_SILENCE_S)
                return False
            except ServerRefused as error:
                log.warning("file request %s was refused: %s", order.request_id, error)
                self._refused.add(order.request_id)
                self._orders.pop(order.request_id, None)
            else:
                if reply is None or reply.done:
                    self._orders.pop(order.request_id, None)
        return True

    async def _step(self, order: FileOrder) -> FileReply | None:
        """None where there is nothing more to say. Raises ServerUnreachable or ServerRefused."""
        try:
            if order.kind is FileKind.LIST:
                entries, more = await asyncio.to_thread(list_entries, order, self._rules, self._never)
                await self._send_answer(FileAnswer(self._incarnation, order.request_id, entries, more))
                return None
            piece, digest = await asyncio.to_thread(self._read, order)
        except PathRefused as error:
            await self._send_answer(FileAnswer(self._incarnation, order.request_id, reason=error.reason))
            return None
        reply = await self._send_piece(self._incarnation, order.request_id, piece, digest)
        if order.request_id in self._orders:
            self._orders[order.request_id] = msgspec.structs.replace(
                order, offset=reply.next_offset, version=piece.version
            )
        return reply

    def _read(self, order: FileOrder) -> tuple[Piece, str]:
        piece = read_piece(order, self._rules, self._never)
        return piece, hashlib.sha256(piece.content).hexdigest()
