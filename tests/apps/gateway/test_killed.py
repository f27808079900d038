"""A gateway that is killed without warning loses no record of an answered call (GW-12)."""

import asyncio
import os
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.db.models import Count, Sum

from apps.core import ticks
from apps.usage.flusher import flush
from apps.usage.models import Span, UsageFile, UsageRecord, UsageTotal
from tests.fakes.gateway import BODY, SECRET, until
from tests.fakes.gateway_process import gateway_process
from tests.fakes.mock_engine import MockEngine

CALLERS, KILLS = 100, 3
PROMPT, COMPLETION = 21, 3  # as the mock engine tells them of each call


@dataclass
class Calls:
    """`answered`: ids of whole answers and of streams with their [DONE]; `cut`: how many others began."""

    answered: set[str] = field(default_factory=set)
    cut: int = 0

    async def go_on(self, session: aiohttp.ClientSession, url: str, draw: random.Random) -> None:
        """One caller, until the gateway is gone."""
        gone = False
        while not gone:
            try:
                async with session.post(url, json={**BODY, "stream": draw.random() < 0.5}) as response:
                    got = b""
                    async for chunk in response.content.iter_any():
                        got += chunk
                        if b"data: [DONE]" in got:
                            self.answered.add(response.headers["x-request-id"])
                    if b'"finish_reason"' in got and not got.startswith(b"data:"):
                        self.answered.add(response.headers["x-request-id"])
            except (aiohttp.ClientError, ConnectionError):
                self.cut, gone = self.cut + 1, True


@pytest.mark.slow
@pytest.mark.req("GW-12")
@pytest.mark.django_db(transaction=True)
async def test_kills_lose_none_and_double_none(engine: MockEngine, tmp_path: Path) -> None:
    engine.plan.gap_s = 0.02
    calls, draw, rounds = Calls(), random.Random(), 0

    def flush_once() -> int:
        return flush(tmp_path, own_pid=os.getpid()).rows

    inherited = 0
    for _ in range(KILLS):
        enough = len(calls.answered) + draw.randrange(CALLERS, 3 * CALLERS)
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            async with gateway_process(engine.port, tmp_path) as gateway:
                url = f"{gateway.url}/v1/chat/completions"
                callers = [asyncio.create_task(calls.go_on(session, url, draw)) for _ in range(CALLERS)]
                before = await sync_to_async(UsageRecord.objects.count)()
                while len(calls.answered) < enough:
                    # Another process may not touch the files of a living owner.
                    await sync_to_async(flush_once)()
                    rounds += 1
                    await asyncio.sleep(0.01)
                assert await sync_to_async(UsageRecord.objects.count)() == before
            await asyncio.gather(*callers)
        # Two heirs at once: each line still becomes one row.
        inherited += sum(
            await asyncio.gather(*(sync_to_async(flush_once, thread_sensitive=False)() for _ in range(2)))
        )
    assert rounds
    await until(lambda: engine.running == 0)
    await sync_to_async(judge)(calls, inherited)
    assert list(tmp_path.glob("*.jsonl")) == []


def judge(calls: Calls, inherited: int) -> None:
    """Each answered call is one row with its tokens, in rows and in sums alike."""
    stored = list(UsageRecord.objects.values_list("request_id", flat=True))
    assert calls.answered <= set(stored)
    assert len(stored) == len(set(stored)) == inherited
    assert len(calls.answered) <= len(stored) <= len(calls.answered) + calls.cut
    sums = {"prompt": Sum("prompt_tokens"), "completion": Sum("completion_tokens")}
    answered = [row for row in UsageRecord.objects.all() if row.request_id in calls.answered]
    assert {(row.prompt_tokens, row.completion_tokens, row.estimated) for row in answered} == {
        (PROMPT, COMPLETION, False)
    }
    counted = 0
    while (ran := ticks.run_tick("usage.totals", datetime.now(UTC))) is not None and ran["records"]:
        counted += ran["records"]
    assert counted == len(stored)
    rows = UsageRecord.objects.aggregate(requests=Count("pk"), **sums)
    for span in (Span.HOUR, Span.DAY):
        assert UsageTotal.objects.filter(span=span).aggregate(requests=Sum("requests"), **sums) == rows
    assert not UsageFile.objects.exists()
