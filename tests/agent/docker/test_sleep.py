"""Sleep, wake and health with real containers of a fake vLLM: nothing is lost, whoever dies when."""

import asyncio
import contextlib
import http.client
import socket
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import HealthCheck, PortMapping, SleepOrder, TaskReport, TaskSpec
from agent.contract.states import Desired, Observed, Phase
from tests.agent.docker.conftest import KEY, Machine, free_port
from tests.agent.fakes import make_spec
from tests.agent.test_real_agent import ask
from tests.fakes.docker.engines import DockerNode
from tests.fakes.tiny_model import ANSWER as TINY_ANSWER
from tests.fakes.vllm.image import ANSWER, build_fake_vllm, order, order_next

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]
ORDER = SleepOrder(drain_seconds=20, settle_seconds=0.5)
Step = Callable[["Service"], Awaitable[None]]
QUICK = {"LOADING_PROBE_S": "0.1", "STEP_S": "0.1"}


@pytest.fixture(scope="session")
def vllm_image(docker_node: DockerNode) -> str:
    return build_fake_vllm(docker_node.socket)


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


@pytest.mark.req("SLEEP-01", "SLEEP-02", "AGENT-04", "AGENT-17", "LIFE-04")
async def test_sleep_and_wake_of_the_same_container(service: Service) -> None:
    container = await service.serve()
    assert await service.chat() == ANSWER
    for _ in range(2):
        report = await service.sleep()
        assert (report.phase, report.reason) == (Phase.LEAVING, reason(Code.ASLEEP))
        assert (report.exit_code, report.notes) == (0, [])
        assert service.state() == "exited"
        await service.alone()
        await service.wake()
        assert service.machine.container() == container
        assert await service.chat() == ANSWER
    assert len(service.machine.server.claims) == 1
    await service.machine.wait_for(lambda: service.log().count("Starting vLLM") == 3, "all of its log")
    said = [line.partition("] ")[2].partition(" on http")[0] for line in service.log().splitlines()]
    started, asked = "Starting vLLM API server 0", "sleep is asked for, level 2"
    assert said == [started, asked, started, asked, started]


@pytest.mark.req("SLEEP-01")
async def test_running_request_ends_before_the_engine_sleeps(service: Service) -> None:
    await service.serve()
    order(service.port, gap_s=0.5)
    async with service.request() as answer:
        report = await service.sleep()
        assert answer.done() and answer.result() == ANSWER
    assert report.notes == []


@pytest.mark.req("SLEEP-01")
async def test_endless_request_is_cut_at_the_deadline(service: Service) -> None:
    await service.serve()
    order(service.port, frozen=True)
    async with service.request():
        report = await service.sleep(SleepOrder(drain_seconds=1, settle_seconds=0.5))
    (note,) = report.notes
    assert (note.code, note.params["requests"]) == (Code.DRAIN_CUT, 1)
    assert service.state() == "exited"


@pytest.mark.req("SLEEP-01")
@pytest.mark.parametrize(("how", "words"), [("hang", "no answer within 1 s"), ("error", "answers 500")])
async def test_engine_that_fails_to_sleep_is_stopped_all_the_same(
    service: Service, how: str, words: str
) -> None:
    container = await service.serve(agent={"SLEEP_CALL_S": "1"})
    order(service.port, sleep=how)
    (note,) = (await service.sleep()).notes
    assert note.code is Code.SLEEP_CALL_FAILED and words in str(note.params["why"])
    await service.wake()
    assert service.machine.container() == container and await service.chat() == ANSWER


@pytest.mark.req("SLEEP-01", "SLEEP-02")
async def test_engine_without_a_sleep_call(machine: Machine) -> None:
    await machine.start(**QUICK)
    port = await machine.serve()
    container, spec = machine.container(), machine.server.specs[machine.task, 1]
    machine.want(spec, Desired.STOP, ORDER)
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.ASLEEP), "asleep")
    (report,) = machine.server.told(machine.task, observed=Observed.ASLEEP)
    assert report.notes == [reason(Code.SLEEP_CALL_SKIPPED, engine="llamacpp")]
    machine.want(spec)
    await machine.wait_for(lambda: len(machine.server.told(machine.task, phase=Phase.READY)) == 2, "woken")
    assert machine.container() == container
    status, answer = await ask(port, KEY)
    assert status == 200 and TINY_ANSWER in str(answer)


async def drains(service: Service) -> None:
    order(service.port, gap_s=1.0)
    async with service.request():
        service.tell_to_sleep()
        await service.machine.said("to sleep, once its requests are answered")


async def is_called(service: Service) -> None:
    order(service.port, sleep="hang")
    service.tell_to_sleep()
    await service.machine.wait_for(lambda: "sleep is asked for" in service.log(), "the sleep call")


async def is_stopped(service: Service) -> None:
    order(service.port, term="ignore")
    service.tell_to_sleep()
    await service.machine.wait_for(lambda: service.told(phase=Phase.LEAVING), "leaving")


async def sleeps(service: Service) -> None:
    await service.sleep()


@pytest.mark.req("SLEEP-01", "AGENT-09")
@pytest.mark.parametrize("step", [drains, is_called, is_stopped, sleeps])
async def test_agent_killed_at_each_step_of_falling_asleep(service: Service, step: Step) -> None:
    container = await service.serve()
    await step(service)
    await service.machine.kill()
    known = len(service.told(observed=Observed.ASLEEP))
    before = {beat.incarnation for beat in service.machine.server.heartbeats}
    await service.machine.start(**QUICK, SLEEP_CALL_S="1")
    await service.asleep(known)
    if step is sleeps:
        first = next(b for b in service.machine.server.heartbeats if b.incarnation not in before)
        assert [report.observed for report in first.running] == [Observed.ASLEEP]
    assert (service.state(), service.machine.container()) == ("exited", container)
    assert service.told(observed=Observed.EXITED) == service.told(observed=Observed.GONE) == []
    await service.alone()
    order_next(service.model)
    await service.wake()
    assert service.machine.container() == container and await service.chat() == ANSWER


async def waits_for_its_port(service: Service) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", service.port))
        holder.listen(1)
        service.machine.want(service.current)
        await service.machine.said(f"port {service.port} is in use")


async def loads(service: Service) -> None:
    order_next(service.model, load_s=4)
    service.machine.want(service.current)
    await service.machine.wait_for(lambda: len(service.told(phase=Phase.LOADING)) == 2, "it loads")


async def owes_its_token(service: Service) -> None:
    order_next(service.model, chat="error")
    service.machine.want(service.current)
    await service.machine.said("no first token yet")


@pytest.mark.req("SLEEP-02", "AGENT-09")
@pytest.mark.parametrize("step", [waits_for_its_port, loads, owes_its_token])
async def test_agent_killed_at_each_step_of_waking(service: Service, step: Step) -> None:
    container = await service.serve()
    await service.sleep()
    await step(service)
    await service.machine.kill()
    assert len(service.told(phase=Phase.READY)) == 1
    await service.machine.start(**QUICK)
    if step is owes_its_token:
        await service.machine.wait_for(
            lambda: service.machine.agent_log().count("no first token yet") > 1, "it still asks for one"
        )
        assert len(service.told(phase=Phase.READY)) == 1
        order(service.port, chat="ok")
    await service.ready(2)
    assert service.machine.container() == container and await service.chat() == ANSWER
    assert len(service.machine.server.claims) == 1
    await service.alone()


@pytest.mark.req("SLEEP-02")
async def test_token_that_never_comes_fails_the_wake(service: Service) -> None:
    await service.serve(agent={"CANARY_S": "2"})
    await service.sleep()
    order_next(service.model, chat="empty")
    service.machine.want(service.current)
    await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "it failed")
    (report,) = service.told(observed=Observed.EXITED)
    assert report.reason is not None and report.reason.code is Code.CANARY_FAILED
    assert "/v1/completions answers 200" in str(report.reason.params["why"])
    assert "Starting vLLM" in report.last_log_lines[-1]
    assert len(service.told(phase=Phase.READY)) == 1


@pytest.mark.req("SLEEP-02")
async def test_token_that_comes_late_is_waited_for(service: Service) -> None:
    await service.serve()
    await service.sleep()
    order_next(service.model, frozen=True)
    service.machine.want(service.current)
    await service.machine.wait_for(lambda: len(service.told(phase=Phase.LOADING)) == 2, "it loads")
    await service.machine.wait_for(service.is_asked, "it is asked for a token")
    assert len(service.told(phase=Phase.READY)) == 1
    order(service.port, frozen=False)
    await service.ready(2)


@pytest.mark.req("SLEEP-03", "AGENT-09")
@pytest.mark.parametrize("gone", ["container", "network"])
async def test_what_was_removed_by_hand_is_made_anew(service: Service, gone: str) -> None:
    api = service.machine.api
    container = await service.serve()
    await service.sleep()
    if gone == "container":
        api.remove_container(container, force=True)
        await service.machine.wait_for(lambda: service.told(observed=Observed.GONE), "told", 10)
        await service.machine.wait_for(lambda: service.machine.running() == [], "not in the heartbeat")
    else:
        api.remove_network(service.machine.task)
    await service.wake()
    (report,) = service.told(observed=Observed.GONE)
    assert report.reason == reason(Code.CONTAINER_GONE)
    assert service.machine.container() != container and await service.chat() == ANSWER
    assert len(service.machine.server.claims) == 2
    assert "somebody else" not in service.machine.agent_log()
    await service.alone()
    await service.machine.wait_for(lambda: service.log().count("Starting vLLM") == 2, "the log of both")
    assert "sleep is asked for" in service.log() and "missing" not in service.log()


@pytest.mark.req("SLEEP-01")
async def test_sleeper_that_somebody_started_is_stopped_again(service: Service) -> None:
    container = await service.serve()
    await service.sleep()
    # nobody holds its path now, without which Docker would not start it
    held = service.machine.api.inspect_container(container)["HostConfig"]["Mounts"][0]["Source"]
    Path(held).mkdir()
    try:
        service.machine.api.start(container)
        await service.machine.said("somebody else started it")
        await service.asleep(1)
        assert service.state() == "exited"
    finally:
        Path(held).rmdir()
    await service.wake()
    assert service.machine.container() == container and await service.chat() == ANSWER


@pytest.mark.req("SLEEP-01", "AGENT-14")
async def test_killed_dockerd_wakes_nobody(service: Service) -> None:
    container = await service.serve(agent={"DOCKER_SILENCE_S": "2"})
    await service.sleep()
    service.machine.node.kill()
    try:
        await service.machine.said("Docker does not answer")
        beats = len(service.machine.server.heartbeats)
        await service.machine.wait_for(
            lambda: len(service.machine.server.heartbeats) > beats + 3, "heartbeats go on"
        )
        assert service.machine.running() == [service.machine.task]
    finally:
        await asyncio.to_thread(service.machine.node.restart)
    await service.machine.said("Docker answers again")
    assert service.told(observed=Observed.GONE) == []
    await service.wake()
    assert service.machine.container() == container


@pytest.mark.req("SLEEP-01", "LIFE-04")
async def test_sleeper_is_stopped_for_good(service: Service) -> None:
    await service.serve()
    await service.sleep()
    service.machine.want(service.current, Desired.STOP)
    await service.machine.wait_for(lambda: service.told(observed=Observed.GONE), "gone")
    await service.machine.wait_for(lambda: not service.machine.container(), "the container is removed")
    assert service.machine.api.networks(names=[service.machine.task]) == []


SLOW = HealthCheck(type="engine", interval_seconds=0.3, unhealthy_threshold=3, start_period_seconds=1)


@pytest.mark.req("AGENT-08")
async def test_slow_load_with_visible_progress_is_waited_for(service: Service) -> None:
    await service.serve(health_check=SLOW, env={"FAKE_VLLM_LOAD_S": "6"})
    assert [r.phase for r in service.told()] == [Phase.CLAIMED, Phase.CREATING, Phase.LOADING, Phase.READY]


@pytest.mark.req("AGENT-08")
@pytest.mark.parametrize("progress", [True, False])
async def test_load_without_an_end_is_told_from_one_without_progress(
    service: Service, progress: bool
) -> None:
    env = {"FAKE_VLLM_LOAD_S": "600", "FAKE_VLLM_LOAD_TELLS": str(progress).lower()}
    await service.machine.start(**QUICK, LOAD_CAP_S="8")
    service.machine.want(service.spec(health_check=SLOW, env=env))
    await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "it failed")
    why = service.told(observed=Observed.EXITED)[0].reason
    assert why is not None and why.code is Code.LOAD_TIMEOUT
    # by the hard cap, or by three failures with nothing new in the log
    assert ("failures" in why.params) is not progress


@pytest.mark.req("AGENT-08")
@pytest.mark.parametrize("kind", ["engine", "http"])
async def test_token_counter_that_stands_still_under_requests(service: Service, kind: str) -> None:
    check = HealthCheck(type=kind, interval_seconds=0.3, start_period_seconds=20)
    await service.serve(agent={"STALL_CPU_S": "2"}, health_check=check)
    order(service.port, frozen=True)
    async with service.request():
        if kind == "engine":
            await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "it is sick")
            why = service.told(observed=Observed.EXITED)[0].reason
            assert why is not None and (why.code, why.params["requests"]) == (Code.STALLED, 1)
        else:
            await service.pass_heartbeats(8)
            assert service.told()[-1].phase is Phase.READY


@pytest.mark.req("AGENT-08")
async def test_still_counter_without_requests_is_no_sign(service: Service) -> None:
    await service.serve(agent={"STALL_CPU_S": "1"})
    order(service.port, frozen=True)
    await service.pass_heartbeats(6)
    assert service.told()[-1].phase is Phase.READY


@pytest.mark.req("AGENT-08", "AGENT-09")
async def test_exit_of_its_own_is_told_with_its_code(service: Service) -> None:
    await service.serve()
    with contextlib.suppress(OSError, http.client.HTTPException):
        order(service.port, exit_code=3)
    await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "told")
    (report,) = service.told(observed=Observed.EXITED)
    assert (report.exit_code, report.reason) == (3, reason(Code.EXITED, exit_code=3))
