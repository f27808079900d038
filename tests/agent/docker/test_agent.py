"""The real agent process with the Docker runtime, against the fake server."""

import asyncio
import signal

import pytest

from agent.contract.codes import Code
from agent.contract.messages import HealthCheck, PortMapping
from agent.contract.states import Desired, Observed, Phase
from tests.agent.docker.conftest import KEY, Machine
from tests.agent.fakes import make_spec
from tests.agent.test_real_agent import ask
from tests.fakes.fake_server import answer_with
from tests.fakes.tiny_model import ANSWER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


@pytest.mark.req("AGENT-03", "AGENT-09", "AGENT-17", "LIFE-08")
async def test_from_join_to_answer_to_stop(machine: Machine) -> None:
    await machine.start()
    port = await machine.serve()
    status, answer = await ask(port, KEY)
    assert status == 200 and ANSWER in str(answer)
    assert (await ask(port, "another"))[0] == 401
    told = [report.phase for report in machine.server.told(machine.task)]
    assert told == [Phase.CLAIMED, Phase.CREATING, Phase.LOADING, Phase.READY]
    beat = machine.server.heartbeats[-1]
    assert beat.runtime == "docker"
    assert [engine.name for engine in beat.engines] == ["llamacpp"]
    machine.want(machine.server.specs[machine.task, 1], Desired.STOP)
    await machine.server.say_look()
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.GONE), "gone")
    await machine.wait_for(lambda: not machine.container(), "the container is removed")
    assert machine.server.told(machine.task, observed=Observed.GONE)[0].exit_code == 0
    text = (machine.folder / "agent.log").read_text()
    assert "Traceback" not in text and KEY not in text


@pytest.mark.req("AGENT-03", "AGENT-09", "AGENT-02")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_next_run_of_the_agent_adopts_without_a_hiccup(machine: Machine, end: signal.Signals) -> None:
    agent = await machine.start()
    port = await machine.serve()
    before = machine.container()
    agent.send_signal(end)
    await agent.wait()
    assert (await ask(port, KEY))[0] == 200  # nobody needs the agent for that
    told = len(machine.server.reports)

    await machine.start()
    await machine.wait_for(
        lambda: len({b.incarnation for b in machine.server.heartbeats}) == 2, "the next run"
    )
    first = next(b for b in machine.server.heartbeats if b.incarnation == machine.server.newest[1])
    assert [(r.task_id, r.attempt, r.host_ports) for r in first.running] == [(machine.task, 1, [port])]
    await machine.wait_for(lambda: len(machine.server.reports) > told, "it was probed")
    assert machine.container() == before
    assert (await ask(port, KEY))[0] == 200
    # for the service nothing has happened: no claim, no way back to loading, one "ready"
    assert [r.phase for r in machine.server.reports[told:]] == [Phase.READY]
    assert len(machine.server.claims) == 1
    # and the adopted one is stopped like any other
    machine.want(machine.server.specs[machine.task, 1], Desired.STOP)
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.GONE), "gone")
    await machine.wait_for(lambda: not machine.container(), "the container is removed")


@pytest.mark.req("AGENT-10")
async def test_log_lines_are_exact_over_kills_of_the_agent(machine: Machine) -> None:
    code = (
        "import sys, time\n"
        "for i in range(400):\n"
        "    print('line', i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)\n"
        "    time.sleep(0.02)\n"
        "print('x' * 40000)\n"
        "print('no end of line', end='')\n"
    )
    machine.script(code)
    for _ in range(3):
        agent = await machine.start()
        known = len(machine.server.logs.get((machine.task, 1), ""))
        await machine.wait_for(
            lambda known=known: len(machine.server.logs.get((machine.task, 1), "")) > known + 100, "log lines"
        )
        agent.kill()
        await agent.wait()
    await machine.start()
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.EXITED), "it ended")
    await machine.wait_for(
        lambda: machine.server.logs[machine.task, 1].endswith("no end of line"), "the last line"
    )
    lines = machine.server.logs[machine.task, 1].splitlines()
    # two streams: Docker keeps the order within each
    assert [line for line in lines if line.startswith("line") and int(line.split()[1]) % 2 == 0] == [
        f"line {i}" for i in range(0, 400, 2)
    ]
    assert [line for line in lines if line.startswith("line") and int(line.split()[1]) % 2] == [
        f"line {i}" for i in range(1, 400, 2)
    ]
    assert lines[-2:] == ["x" * 40000, "no end of line"]
    assert len(lines) == 402


@pytest.mark.req("AGENT-09")
async def test_container_unknown_to_the_server_is_removed_after_its_grace(machine: Machine) -> None:
    agent = await machine.start()
    await machine.serve()
    agent.kill()
    await agent.wait()
    machine.server.desired.clear()
    machine.server.always["heartbeat"] = answer_with(500)
    await machine.start()
    await machine.said("the server does not answer")
    assert machine.container()  # no answer is no list
    machine.server.always.clear()
    await machine.wait_for(lambda: not machine.container(), "removed")
    assert machine.server.told(machine.task, observed=Observed.GONE)


@pytest.mark.req("AGENT-09", "AGENT-14")
async def test_killed_dockerd_is_silence_and_no_end(machine: Machine) -> None:
    await machine.start(DOCKER_SILENCE_S="5")
    port = await machine.serve()
    before, told = machine.container(), len(machine.server.reports)
    machine.node.kill()
    try:
        await machine.said("Docker does not answer")
        beats = len(machine.server.heartbeats)
        await machine.wait_for(lambda: len(machine.server.heartbeats) > beats + 5, "heartbeats go on")
        assert machine.running() == [machine.task]
        assert len(machine.server.reports) == told
    finally:
        await asyncio.to_thread(machine.node.restart)
    await machine.said("Docker answers again")
    assert machine.container() == before
    assert (await ask(port, KEY))[0] == 200
    beats = len(machine.server.heartbeats)
    await machine.wait_for(lambda: len(machine.server.heartbeats) > beats + 3, "and goes on")
    assert len(machine.server.reports) == told


@pytest.mark.req("AGENT-09", "AGENT-14")
async def test_agent_that_starts_before_docker_says_nothing_until_it_knows(machine: Machine) -> None:
    agent = await machine.start()
    await machine.serve()
    before = machine.container()
    agent.kill()
    await agent.wait()
    machine.node.kill()
    try:
        known = {beat.incarnation for beat in machine.server.heartbeats}
        await machine.start()
        await machine.said("Docker does not answer")
        await machine.wait_for(lambda: len(machine.server.joins) == 1, "joined before")
    finally:
        await asyncio.to_thread(machine.node.restart)
    await machine.wait_for(lambda: machine.server.newest[1] not in known, "the next run's first heartbeat")
    first = next(b for b in machine.server.heartbeats if b.incarnation not in known)
    assert [report.task_id for report in first.running] == [machine.task]
    assert machine.container() == before


@pytest.mark.req("AGENT-09")
async def test_stop_while_docker_is_away_is_carried_out_when_it_is_back(machine: Machine) -> None:
    await machine.start()
    await machine.serve()
    machine.node.kill()
    try:
        await machine.said("Docker does not answer")
        machine.want(machine.server.specs[machine.task, 1], Desired.STOP)
        await machine.wait_for(lambda: machine.server.told(machine.task, phase=Phase.LEAVING), "leaving")
    finally:
        await asyncio.to_thread(machine.node.restart)
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.GONE), "gone")
    await machine.wait_for(lambda: not machine.container(), "the container is removed")


@pytest.mark.req("AGENT-07")
async def test_port_held_for_a_while_is_waited_for(machine: Machine) -> None:
    holder = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = holder.sockets[0].getsockname()[1]
    await machine.start()
    spec = make_spec(
        machine.task,
        model_path=str(machine.folder / "models" / "tiny"),
        ports=[PortMapping(8080, port)],
        engine_key=KEY,
        health_check=HealthCheck(interval_seconds=0.3),
    )
    machine.want(spec)
    await machine.said(f"port {port} is in use")
    holder.close()
    await holder.wait_closed()
    await machine.wait_for(lambda: machine.server.told(machine.task, phase=Phase.READY), "ready")


@pytest.mark.req("AGENT-09")
async def test_container_removed_by_hand_is_told_within_two_heartbeats(machine: Machine) -> None:
    await machine.start()
    await machine.serve()
    machine.api.remove_container(machine.container(), force=True)
    await machine.wait_for(lambda: machine.server.told(machine.task, observed=Observed.EXITED), "told", 10)
    (report,) = machine.server.told(machine.task, observed=Observed.EXITED)
    assert report.reason is not None and report.reason.code is Code.CONTAINER_GONE


@pytest.mark.req("AGENT-03")
async def test_containers_end_with_an_agent_that_is_told_to(machine: Machine) -> None:
    agent = await machine.start(STOP_ON_LEAVE="true")
    await machine.serve()
    agent.terminate()
    assert await asyncio.wait_for(agent.wait(), 15) == 0
    assert not machine.container()
    (report,) = machine.server.told(machine.task, observed=Observed.EXITED)
    assert report.reason is not None and report.reason.code is Code.AGENT_RESTARTED
