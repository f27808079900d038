"""Reads request bodies within their limits of size, time and room; big and packed ones are parsed off the
loop."""

import asyncio
from functools import partial

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.packed import read_coding, unpack
from apps.gateway.plane.core.request import Call, estimate_prompt_tokens, parse_call
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.off_loop import work_aside
from apps.gateway.plane.io.room import Kept


class BodyReader:
    """`big_bodies` bounds how many big or packed bodies are parsed at once."""

    def __init__(self, config: GatewayConfig, big_bodies: asyncio.Semaphore) -> None:
        self._config = config
        self._big_bodies = big_bodies
        self.ordinary = min(config.big_body_bytes, config.max_body_bytes + 1)

    def ready_call(self, asked: Asked) -> Call | None:
        """The call of an ordinary body that is there already, as nearly all are. Raises CallError 400."""
        if b"content-encoding" in asked.headers:
            return None
        body = asked.ready(self.ordinary)
        return None if body is None else parse_call(asked.path, body)

    async def read_call(self, asked: Asked, kept: Kept) -> Call:
        """The parsed call; `kept` is its room. Raises CallerGone, or CallError 400, 408, 413, 415, 503."""
        headers, limit = asked.headers, self._config.max_body_bytes
        coding = read_coding(headers.get(b"content-encoding"))
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limit:
            raise errors.body_too_large(limit)
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await asked.body(limit, lambda size: kept.resize(self._room_for(size)))
        except TimeoutError:
            raise errors.body_too_slow(self._config.body_timeout_s) from None
        if coding is None and len(body) < self._config.big_body_bytes:
            return parse_call(asked.path, body)
        parse = partial(_parse_big_call, asked.path, body, coding, limit)
        call, size = await work_aside(self._big_bodies, parse)
        kept.resize(self._room_for(size))
        return call

    def _room_for(self, size: int) -> int:
        """Ordinary bodies need none: connections bound them."""
        return size if size >= self._config.big_body_bytes else 0


def _parse_big_call(path: str, body: bytes, coding: str | None, limit: int) -> tuple[Call, int]:
    """The call, and the size of its body unpacked. Counts the prompt now, so that the body needn't be kept
    until the end of the call."""
    if coding is not None:
        body = unpack(coding, body, limit)
    call = parse_call(path, body)
    call.prompt_tokens = estimate_prompt_tokens(call)
    return call, len(body)
