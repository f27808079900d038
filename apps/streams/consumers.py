"""The live log of a task: /ws/tasks/{task id}/logs?attempt=&from=.

Replays from the asked offset, then goes on as pieces arrive. Hints (`log.more`) only say "look now":
each look re-reads the rows from the consumer's own offset, and it also looks by itself every
LOG_POLL_S, so that a lost hint only delays. Holds no database connection between two looks, and
sends the next message only when the last one is on its way (back-pressure).
"""

import asyncio
import contextlib
import json
import logging
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError

from apps.core.errors import NotFound
from apps.core.ids import looks_like_id
from apps.streams.selectors import LogPiece, read_log
from apps.streams.services import log_group
from apps.tenants.models import User
from apps.tenants.scope import viewer_of

log = logging.getLogger("heteroflow.streams")

BAD_QUERY, NOT_SIGNED_IN, NOT_FOUND = 4400, 4401, 4404  # close codes, after the HTTP statuses
INTERNAL = 1011
LARGEST = 2**63 - 1
DIGITS = len(str(LARGEST))


class LogConsumer(AsyncWebsocketConsumer):
    """Sends `{"attempt", "start", "end", "text"}`; takes nothing from the browser.

    Without an attempt in the query it follows the newest one, also into later attempts. A viewer
    who loses sight of the task is closed out at the next look.
    """

    async def connect(self) -> None:
        """Accepts first, so that the browser gets to see the close code."""
        self.task_id: str = self.scope["url_route"]["kwargs"]["task_id"]
        self.more = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None
        await self.accept()
        user = self.scope.get("user")
        if user is None or not user.is_authenticated:
            await self.close(NOT_SIGNED_IN)
            return
        if not looks_like_id(self.task_id):  # nor would it be the name of a group
            await self.close(NOT_FOUND)
            return
        try:
            attempt, start = _read_query(self.scope["query_string"])
        except ValueError as error:
            await self.close(BAD_QUERY, str(error))
            return
        self.user_pk: int = user.pk
        self.group = log_group(self.task_id)
        # Join before the first look: what arrives between them is heard.
        await self.channel_layer.group_add(self.group, self.channel_name)
        self.pump = asyncio.create_task(self._run(attempt, start))

    async def disconnect(self, code: int) -> None:
        if self.pump is None:
            return
        self.pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.pump
        await self.channel_layer.group_discard(self.group, self.channel_name)

    async def log_more(self, message: dict[str, Any]) -> None:
        """A hint: look now."""
        self.more.set()

    async def _run(self, attempt: int | None, start: int) -> None:
        try:
            await self._follow(attempt, start)
        except NotFound:
            await self.close(NOT_FOUND)
        except OSError:
            log.debug("live log of %s: the browser has gone", self.task_id)
        except Exception:
            log.exception("live log of %s has ended", self.task_id)
            await self.close(INTERNAL)

    async def _follow(self, asked: int | None, at: int) -> None:
        attempt = asked
        while True:
            self.more.clear()
            piece = await self._look(attempt, at)
            if piece is None:
                await self._wait()
                continue
            attempt, at = self._next(piece, asked)
            if piece.text:
                await self._say(piece)
            elif (attempt, at) == (piece.attempt, piece.end) and at >= piece.stored_until:
                await self._wait()

    @staticmethod
    def _next(piece: LogPiece, asked: int | None) -> tuple[int, int]:
        """Where to look next: further on, or at the beginning of the next attempt that has a log."""
        later = [n for n in piece.attempts if n > piece.attempt]
        if asked is None and later and piece.end >= piece.stored_until:
            return later[0], 0
        return piece.attempt, piece.end

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.more.wait(), settings.LOG_POLL_S)

    async def _say(self, piece: LogPiece) -> None:
        message = {"attempt": piece.attempt, "start": piece.start, "end": piece.end, "text": piece.text}
        await self.send(text_data=json.dumps(message, ensure_ascii=False))

    async def _look(self, attempt: int | None, at: int) -> LogPiece | None:
        """None while the database does not answer; the next look tries again."""
        try:
            return await database_sync_to_async(self._read)(attempt, at)
        except DatabaseError as error:
            log.warning("live log of %s: the database did not answer: %s", self.task_id, error)
            return None

    def _read(self, attempt: int | None, at: int) -> LogPiece:
        viewer = viewer_of(User.objects.filter(pk=self.user_pk).first())  # rights may have changed
        return read_log(
            viewer, self.task_id, attempt=attempt, start=at, max_bytes=settings.LOG_MESSAGE_MAX_BYTES
        )


def _read_query(raw: bytes) -> tuple[int | None, int]:
    """(attempt, from). Raises ValueError naming the field."""
    query = parse_qs(raw.decode("latin-1"))
    numbers: dict[str, int | None] = {"attempt": None, "from": None}
    for name in numbers:
        text = query.get(name, [""])[-1]
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text) <= LARGEST):
            raise ValueError(f"{name} must be a whole number from 0")
        numbers[name] = int(text)
    return numbers["attempt"], numbers["from"] or 0
