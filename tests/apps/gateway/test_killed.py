"""A gateway that is killed without warning loses no record of an answered call (GW-12)."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from asgiref.sync import sync_to_async

from apps.usage.flusher import flush
from apps.usage.models import UsageFile, UsageRecord
from tests.fakes.gateway import BODY, SECRET
from tests.fakes.mock_engine import MockEngine

ROOT = Path(__file__).parents[3]


async def start_process(engine: MockEngine, folder: Path) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fakes.gateway_process",
        str(engine.port),
        str(folder),
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    return process, int(await asyncio.wait_for(process.stdout.readline(), 60))


async def call_until_it_dies(port: int, answered: list[str]) -> None:
    """Notes the id of each stream whose [DONE] arrived."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as session:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            while True:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                async with session.post(url, json={**BODY, "stream": True}) as response:
                    got = b""
                    while chunk := await response.content.readany():
                        got += chunk
                        if b"data: [DONE]" in got:
                            answered.append(response.headers["x-request-id"])


@pytest.mark.slow
@pytest.mark.req("GW-12")
@pytest.mark.django_db(transaction=True)
async def test_kill_loses_none_and_doubles_none(engine: MockEngine, tmp_path: Path) -> None:
    process, port = await start_process(engine, tmp_path)
    answered: list[str] = []
    try:
        callers = [asyncio.create_task(call_until_it_dies(port, answered)) for _ in range(8)]
        rounds = 0
        while len(answered) < 200:
            # Another process may not touch the files of a living owner.
            await sync_to_async(flush)(tmp_path, own_pid=os.getpid())
            rounds += 1
            await asyncio.sleep(0.01)
        assert rounds
        assert await sync_to_async(UsageRecord.objects.count)() == 0
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await asyncio.gather(*callers)
    # Two heirs at once: each line still becomes one row.
    counts = await asyncio.gather(
        *(sync_to_async(flush, thread_sensitive=False)(tmp_path, own_pid=os.getpid()) for _ in range(2))
    )
    stored = await sync_to_async(lambda: list(UsageRecord.objects.values_list("request_id", flat=True)))()
    assert set(answered) <= set(stored)
    assert len(stored) == len(set(stored)) == sum(count.rows for count in counts)
    assert list(tmp_path.glob("*.jsonl")) == []
    assert not await sync_to_async(UsageFile.objects.exists)()
