"""Who calls the gateway in a soak, and what became of each call. Judges nothing.

A call's outcome is one of: `whole` (all of it came, and right), `left` (its caller left it), `status N CODE`,
`event CODE` (an error event that ended a stream), `wrong ...` (it came whole and isn't the right one); and
what no engine's fault excuses: `cut` (ended without [DONE] and without an error), `silent`, `failed NAME`,
`after ...` (more came after the end).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from bench.gateway_soak.engine import MODEL as ENGINE_MODEL
from bench.gateway_soak.engine import PIECES, PROMPT_TOKENS, TEXT

SILENT_S = 60.0
LEAVES = 0.04
"""This part of the callers leaves in the middle."""


@dataclass
class Called:
    """`call_id` is its beginning of the id that the gateway gives. `sent`: its head was written."""

    call_id: str
    stream: bool
    wants_usage: bool
    leaves: bool
    outcome: str = ""
    sent: bool = False


class Callers:
    """`count` of them, each with one call after another; all calls that ended are in `calls`."""

    def __init__(self, url: str, key: str, model: str, *, count: int, gap_s: float, seed: int) -> None:
        self._url, self._key, self._model, self._count, self._gap_s = url, key, model, count, gap_s
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.calls: list[Called] = []
        self.under_way = 0

    async def run(self, until: float) -> None:
        """Begins calls until that moment (monotonic) and sees all to their end."""
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._key}"},
            trace_configs=[trace],
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENT_S),
        ) as session:
            await asyncio.gather(*(self._go_on(session, until) for _ in range(self._count)))

    async def _go_on(self, session: aiohttp.ClientSession, until: float) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 2 * self._gap_s))
            if time.monotonic() >= until:
                return
            draw = self._random.random
            call = Called(f"soak-{next(self._numbers):08d}", draw() < 0.75, draw() < 0.5, draw() < LEAVES)
            self.under_way += 1
            try:
                call.outcome = await self._ask(session, call)
            except (TimeoutError, aiohttp.SocketTimeoutError):
                call.outcome = "left" if call.leaves and not call.stream else "silent"
            except aiohttp.ClientError as error:
                call.outcome = f"failed {type(error).__name__}"
            finally:
                self.under_way -= 1
                self.calls.append(call)

    async def _ask(self, session: aiohttp.ClientSession, call: Called) -> str:
        body = {"model": self._model, "messages": [{"role": "user", "content": "go on"}]}
        if call.stream:
            body |= {"stream": True, "stream_options": {"include_usage": call.wants_usage}}
        # A caller that leaves a plain call does so before its answer, which takes one gap.
        limit = self._gap_s * 0.7 if call.leaves and not call.stream else None
        headers = {"X-Request-ID": call.call_id}
        asked = session.post(self._url, json=body, headers=headers, trace_request_ctx=call)
        async with asyncio.timeout(limit), asked as response:
            if response.status != 200:
                told = json.loads(await response.read())
                return f"status {response.status} {told['error']['code']}"
            if call.stream and response.content_type != "text/event-stream":
                return "wrong kind"
            if call.stream:
                return await self._read(response, call)
            return _judge_whole(json.loads(await response.read()), self._model)

    async def _read(self, response: aiohttp.ClientResponse, call: Called) -> str:
        left_at = self._random.randrange(1, PIECES) if call.leaves else PIECES + 9
        seen, events = Seen(self._model), 0
        try:
            async for line in response.content:
                if line.startswith(b"data: "):
                    events += 1
                if seen.ended and line != b"\n":
                    return f"after {seen.ended}"
                seen.take(line)
                if events >= left_at and not seen.ended:
                    response.close()
                    return "left"
        except aiohttp.ClientPayloadError:
            return "cut"
        return seen.outcome(call.wants_usage)


async def _note_sent(session: aiohttp.ClientSession, context: SimpleNamespace, told: object) -> None:
    context.trace_request_ctx.sent = True


class Seen:
    """What has come of a stream. `ended`: what ended it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text, self._usage, self._wrong = "", False, ""
        self.ended = ""

    def take(self, line: bytes) -> None:
        if line == b"data: [DONE]\n":
            self.ended = "whole"
        elif line != b"\n" and not line.startswith(b":"):  # comments say that we still wait
            try:
                self._take_event(json.loads(line.removeprefix(b"data: ")))
            except (ValueError, LookupError, TypeError):
                self._wrong = self._wrong or "wrong event"

    def _take_event(self, event: dict) -> None:
        if "error" in event:
            self.ended = f"event {event['error']['code']}"
            return
        if event["model"] != self._model or ENGINE_MODEL in str(event):
            self._wrong = self._wrong or "wrong model"
        if event["choices"]:
            self._text += event["choices"][0]["delta"].get("content", "")
        self._usage = self._usage or "usage" in event

    def outcome(self, wants_usage: bool) -> str:
        if self.ended != "whole":
            return self.ended or "cut"
        if self._text != TEXT or self._usage is not wants_usage:
            return self._wrong or "wrong text or usage"
        return self._wrong or "whole"


def _judge_whole(answer: dict, model: str) -> str:
    right = {"content": TEXT, "role": "assistant"}
    if answer["choices"][0]["message"] != right or answer["model"] != model:
        return "wrong text or model"
    return "whole" if answer["usage"]["prompt_tokens"] == PROMPT_TOKENS else "wrong usage"
