"""Listens on the websocket for "look now", so that news need not wait for the next heartbeat.

Owns that connection and its back-off. Only a hint: the agent is whole without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from agent.contract import wire
from agent.contract.messages import Look
from agent.link.client import ServerClient

log = logging.getLogger("agent.link")
MAX_PAUSE_S = 30.0


class Disconnected(Exception):
    """The websocket could not be opened, or has ended."""


async def keep_lookout(client: ServerClient, look: Callable[[], None], *, first_pause_s: float = 0.5) -> None:
    """Stay connected for ever; each "look" calls `look`, and so does each new connection, since
    hints may have been missed in between."""
    while True:
        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(Disconnected),
            wait=wait_exponential_jitter(multiplier=first_pause_s, max=MAX_PAUSE_S),
        ):
            with turn:
                stayed = await _listen(client, look)
                if not stayed:
                    raise Disconnected
        # it was up: begin again with short pauses
        await asyncio.sleep(first_pause_s)


async def _listen(client: ServerClient, look: Callable[[], None]) -> bool:
    """Listen until the connection ends; whether it was ever up."""
    try:
        async with client.lookout() as socket:
            look()
            async for message in socket:
                if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    _hear(message.data, look)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        log.debug("no websocket to the server: %s", str(error) or type(error).__name__)
        return False
    return True


def _hear(data: str | bytes, look: Callable[[], None]) -> None:
    raw = data.encode() if isinstance(data, str) else data
    try:
        wire.decode(raw, Look)
    except (msgspec.DecodeError, ValueError):
        log.debug("the websocket said something that this agent does not know")
        return
    look()
