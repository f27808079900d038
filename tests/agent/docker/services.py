"""A vLLM of the fake kind on a machine of the tests, and what may be asked of it."""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from agent.contract.messages import HealthCheck, PortMapping, SleepOrder, TaskReport, TaskSpec
from agent.contract.states import Desired, Observed, Phase
from tests.agent.docker.conftest import KEY, Machine, free_port
from tests.agent.fakes import make_spec

ORDER = SleepOrder(drain_seconds=20, settle_seconds=0.5)
QUICK = {"LOADING_PROBE_S": "0.1", "STEP_S": "0.1"}


class Service:
    """One vLLM of the fake kind on the machine."""

    def __init__(self, machine: Machine, image: str) -> None:
        self.machine, self.image = machine, image
        self.port = free_port()
        self.model = machine.folder / "models" / "tiny"

    def spec(self, **changes: object) -> TaskSpec:
        values: dict[str, object] = {
            "engine": "vllm",
            "image": self.image,
            "model_path": str(self.model),
            "ports": [PortMapping(8000, self.port)],
            "engine_key": KEY,
            "sleep_enabled": True,
            "health_check": HealthCheck(type="engine", interval_seconds=0.3, start_period_seconds=20),
        }
        return make_spec(self.machine.task, **(values | changes))

    async def serve(self, *, agent: dict[str, str] | None = None, **changes: object) -> str:
        """Have it ready; Docker's id."""
        await self.machine.start(**(QUICK | (agent or {})))
        self.machine.want(self.spec(**changes))
        await self.ready(1)
        return self.machine.container()

    async def ready(self, times: int) -> None:
        await self.machine.wait_for(lambda: len(self.told(phase=Phase.READY)) >= times, "ready")

    def told(self, **which: object) -> list[TaskReport]:
        return self.machine.server.told(self.machine.task, **which)  # type: ignore[arg-type]

    async def sleep(self, wish: SleepOrder = ORDER) -> TaskReport:
        known = len(self.told(observed=Observed.ASLEEP))
        self.tell_to_sleep(wish)
        return await self.asleep(known)

    def tell_to_sleep(self, wish: SleepOrder = ORDER) -> None:
        self.machine.want(self.current, Desired.STOP, wish)

    async def asleep(self, known: int = 0) -> TaskReport:
        """The next report that it sleeps, `known` of them passed over."""
        told = lambda: self.told(observed=Observed.ASLEEP)[known:]  # noqa: E731
        await self.machine.wait_for(told, "asleep")
        return told()[0]

    async def wake(self) -> None:
        """Until it has said a token."""
        before = len(self.told(phase=Phase.READY))
        self.machine.want(self.current)
        await self.ready(before + 1)

    @property
    def current(self) -> TaskSpec:
        return self.machine.server.specs[self.machine.task, 1]

    def state(self) -> str:
        return str(self.machine.api.inspect_container(self.machine.task)["State"]["Status"])

    def log(self) -> str:
        return self.machine.server.logs.get((self.machine.task, 1), "")

    async def chat(self) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"http://127.0.0.1:{self.port}/v1/chat/completions",
                json={"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
                headers={"Authorization": f"Bearer {KEY}"},
            ) as answer,
        ):
            assert answer.status == 200
            return str((await answer.json())["choices"][0]["message"]["content"])

    @asynccontextmanager
    async def request(self) -> AsyncIterator[asyncio.Task[str]]:
        """A call that runs in the engine for as long as the block does, or is answered in it."""
        answer = asyncio.ensure_future(self.chat())
        await self.machine.wait_for(self.is_asked, "the call runs")
        yield answer
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)

    def is_asked(self) -> bool:
        """Whether the engine has a request in work, by its own word."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                return 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in answer.read().decode()
        except OSError:
            return False

    async def pass_heartbeats(self, count: int) -> None:
        beats = len(self.machine.server.heartbeats)
        await self.machine.wait_for(
            lambda: len(self.machine.server.heartbeats) > beats + count, "heartbeats go on"
        )

    async def alone(self) -> None:
        """There is one container of the task, and the newest heartbeat names it once."""
        rows = self.machine.api.containers(
            all=True, filters={"label": f"heteroflow.task={self.machine.task}"}
        )
        assert len(rows) == 1
        await self.machine.wait_for(
            lambda: self.machine.running() == [self.machine.task], "named in the heartbeat"
        )


@pytest.fixture
async def service(machine: Machine, vllm_image: str) -> AsyncIterator[Service]:
    yield Service(machine, vllm_image)
    # what was made to ignore its end must not hold up the next test's engine
    with contextlib.suppress(Exception):
        machine.api.kill(machine.task)
