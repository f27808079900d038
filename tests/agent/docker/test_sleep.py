"""Sleep and wake with real containers of a fake vLLM: nothing is lost, whoever dies when."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import SleepOrder
from agent.contract.states import Desired, Observed, Phase
from tests.agent.docker.conftest import KEY, Machine
from tests.agent.docker.services import ORDER, QUICK, Service, service
from tests.agent.test_real_agent import ask
from tests.fakes.tiny_model import ANSWER as TINY_ANSWER
from tests.fakes.vllm.image import ANSWER, order, order_next

__all__ = ["service"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]
Step = Callable[[Service], Awaitable[None]]


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
    names = [service.machine.task]
    await service.machine.wait_for(
        lambda: not service.machine.api.networks(names=names), "its network, too", 10
    )
