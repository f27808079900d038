"""An idle timer that runs out as calls come, with two gateways in processes of their own (SLEEP-06)."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from pytest_django import Settings

from agent.contract.codes import Code
from agent.contract.states import Desired, Phase, State
from apps.core import ticks, versions
from apps.core.clock import utc_now
from apps.fleet.models import Port
from apps.routing import gateways
from apps.routing.load import Load
from apps.routing.models import ModelRoute
from apps.scaling.loop import NAME
from apps.workloads.models import Task
from tests import factories
from tests.fakes.gateway import BODY, MODEL, events_of, until
from tests.fakes.mock_engine import MockEngine

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("SLEEP-06"), pytest.mark.slow]
QUICK = {"LOAD_SAY_S": 0.05, "LOAD_REPEAT_S": 0.2, "VERSION_POLL_S": 0.05, "USAGE_FLUSH_S": 60.0}
DOZES = (State.DRAINING, Phase.READY)
TOLD = (State.DRAINING, Phase.LEAVING)
SERVES = (State.RUNNING, Phase.READY)


class Gateway:
    """One process; `name` is what its row is called."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, name: str) -> None:
        self.process, self.port, self.name = process, port, name

    async def load(self) -> Load | None:
        return await sync_to_async(lambda: {s.name: s.load for s in gateways.read()}.get(self.name))()

    async def said_at(self) -> datetime:
        return await sync_to_async(lambda: {s.name: s.said_at for s in gateways.read()}[self.name])()


@contextlib.asynccontextmanager
async def gateway(folder: Path, **changes: float) -> AsyncIterator[Gateway]:
    wanted = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {
        key: str(v) if key == "NAME" else v for key, v in connection.settings_dict.items() if key in wanted
    }
    values = {f"HETEROFLOW_GATEWAY_{name}": value for name, value in (QUICK | changes).items()}
    values |= {"HETEROFLOW_USAGE_DIR": str(folder)}
    known = await names()
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.apps.scaling.gateway_process",
            json.dumps(database),
            json.dumps(values),
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
            while not (new := await names() - known):
                await asyncio.sleep(0.05)
        yield Gateway(process, port, new.pop())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def names() -> set[str]:
    return await sync_to_async(lambda: {source.name for source in gateways.read()})()


def make_service(port: int) -> tuple[Task, str]:
    tenant = factories.make_tenant()
    key, plain = factories.make_key(tenant)
    began = utc_now() - timedelta(hours=1)
    group = factories.make_group(
        tenant, key.member, state=State.RUNNING, idle_timeout_minutes=1, model_name=MODEL
    )
    ModelRoute.objects.create(tenant=tenant, model_name=MODEL, group=group)
    node = factories.make_node(dial={"kind": "direct", "host": "127.0.0.1"}, last_seen_at=utc_now())
    task = factories.make_task(
        group, state=State.RUNNING, phase=Phase.READY, attempt=1, node=node, running_since=began, now=began
    )
    factories.make_claim(task, node, incarnation="run-1")
    Port.objects.create(node=node, number=port, owner=task.public_id, attempt=1, container_port=8000)
    versions.bump()
    return task, plain


class Story:
    def __init__(self, task: Task, key: str, http: aiohttp.ClientSession) -> None:
        self.task, self.http = task, http
        self.headers = {"Authorization": f"Bearer {key}"}

    def ask(self, at: Gateway, **more: Any) -> "asyncio.Task[tuple[int, bytes]]":
        async def call() -> tuple[int, bytes]:
            url = f"http://127.0.0.1:{at.port}/v1/chat/completions"
            async with self.http.post(url, json={**BODY, **more}, headers=self.headers) as answer:
                return answer.status, await answer.read()

        return asyncio.create_task(call())

    async def reads_anew(self, at: Gateway) -> None:
        """A key that a gateway does not know makes it read its table at once."""
        make = sync_to_async(lambda: factories.make_key(Task.objects.get(pk=self.task.pk).group.tenant)[1])
        headers = {"Authorization": f"Bearer {await make()}"}
        async with self.http.get(f"http://127.0.0.1:{at.port}/v1/models", headers=headers) as answer:
            assert answer.status == 200

    async def look(self) -> tuple[str, str]:
        """One run of the loop; where the replica is then."""

        def run() -> tuple[str, str]:
            assert ticks.run_tick(NAME) is not None
            self.task.refresh_from_db()
            return self.task.state, self.task.phase

        return await sync_to_async(run)()

    async def look_until(self, wanted: tuple[str, str]) -> None:
        async with asyncio.timeout(30):
            while await self.look() != wanted:
                await asyncio.sleep(0.02)

    async def told(self, *, at: Gateway, serves: int | None = None, **counts: int) -> None:
        """Waits until a gateway has said so: of which table, and how many calls are in flight or held."""
        async with asyncio.timeout(30):
            while True:
                load = await at.load()
                if load is not None and load.version >= (serves or 0):
                    said = {"in_flight": sum(load.in_flight.values()), "held": sum(load.held.values())}
                    if said | counts == said:
                        return
                await asyncio.sleep(0.02)


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine(model=MODEL) as running:
        yield running


async def test_no_call_is_lost_as_the_idle_timer_runs_out(
    engine: MockEngine, settings: Settings, tmp_path: Path
) -> None:
    settings.IDLE_MINUTE_S = 0.5
    task, key = await sync_to_async(make_service)(engine.port)
    async with (
        aiohttp.ClientSession() as http,
        gateway(tmp_path / "a") as quick,
        gateway(tmp_path / "b", VERSION_POLL_S=3600.0) as slow,
    ):
        story = Story(task, key, http)
        # A call in flight is no idleness, however long it takes.
        engine.plan.delay_s = 1.5
        asking = story.ask(quick)
        await story.told(at=quick, in_flight=1)
        while not asking.done():
            assert await story.look() == SERVES or asking.done()
            await asyncio.sleep(0.02)
        assert (await asking)[0] == 200
        engine.plan.delay_s = 0

        # The timer runs out; in the same instant a call comes to each gateway: one knows of it already, the
        # other, which gets a stream, still has the old table.
        await story.look_until(DOZES)
        engine.plan.tokens, engine.plan.gap_s = 20, 0.5
        stream = story.ask(slow, stream=True)
        await until(lambda: engine.running == 1)
        await story.told(at=quick, serves=task.left_table)
        waiting = story.ask(quick)
        await story.told(at=quick, held=1)
        assert engine.running == 1
        await story.look_until(SERVES)
        assert task.reason_code == Code.STILL_USED
        engine.plan.gap_s = 0.0
        assert (await waiting)[0] == 200
        status, body = await stream
        assert (status, events_of(body)[-1]) == (200, "[DONE]")
        engine.plan.tokens = 3

        # It runs out again and nobody comes: asleep only when both gateways serve without it.
        await story.look_until(DOZES)
        await story.told(at=quick, serves=task.left_table)
        assert await story.look() == DOZES
        await story.reads_anew(slow)
        await story.look_until(TOLD)
        await story.reads_anew(slow)
        for one in (quick, slow):
            load = await one.load()
            assert load is not None and load.version > 1 and not load.in_flight
        assert task.desired == Desired.SLEEP and engine.running == 0
        status, body = await story.ask(slow)
        assert status == 503 and b"no_backend" in body
        async with asyncio.timeout(30):
            while task.desired != Desired.RUN:  # too late to be served, and it wakes for it
                await story.look()
                await asyncio.sleep(0.02)
        assert engine.closed_at == [] and engine.running == 0
    assert await names() == {quick.name, slow.name}
    left = await sync_to_async(lambda: {source.name: source.left for source in gateways.read()})()
    assert left == {quick.name: True, slow.name: True}
    await sync_to_async(connections.close_all)()


async def test_a_gateway_that_hangs_may_be_busy_and_a_killed_one_is_over(
    engine: MockEngine, settings: Settings, tmp_path: Path
) -> None:
    settings.IDLE_MINUTE_S, settings.LOAD_FRESH_S = 0.5, 3.0
    task, key = await sync_to_async(make_service)(engine.port)
    async with (
        aiohttp.ClientSession() as http,
        gateway(tmp_path / "a") as lives,
        gateway(tmp_path / "b") as dies,
    ):
        story = Story(task, key, http)
        engine.plan.delay_s = 600
        asking = story.ask(dies)
        await story.told(at=dies, in_flight=1)
        dies.process.send_signal(signal.SIGSTOP)
        spoken = await lives.said_at()
        while (await lives.said_at() - spoken).total_seconds() < 1:  # five times, each with a look round
            assert await story.look() == SERVES
            await asyncio.sleep(0.05)
        dies.process.kill()
        with pytest.raises(aiohttp.ClientError):
            await asking
        await story.look_until(DOZES)
        assert await names() == {lives.name}
    await sync_to_async(connections.close_all)()
