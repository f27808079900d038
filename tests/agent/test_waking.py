"""What sleeps wakes as the same, or is made anew, and shows a token first (SLEEP-02, -03)."""

import asyncio
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import HealthCheck
from agent.contract.states import Observed, Phase
from agent.runtime.base import Exit, Kept, KeptLost, PortBusy
from agent.supervisor.attempt import Stage
from agent.supervisor.health import Outcome, Probe
from agent.supervisor.sleepmarks import SleepMarks
from tests.agent.fakes import World, make_spec
from tests.agent.test_sleeping import KEY, fall_asleep, next_run, stage, to_sleep, world

__all__ = ["world"]


@pytest.mark.req("SLEEP-01", "SLEEP-02")
async def test_called_back_during_the_call_it_is_stopped_first(world: World) -> None:
    """A level-2 sleep drops the weights: such an engine answers nonsense until it is started anew."""
    world.sleep_gate = asyncio.Event()
    await world.run_to_ready()
    to_sleep(world)
    await world.go(5, steps=10)
    assert stage(world) is Stage.SLEEP_CALL
    world.list(world.want())
    await world.go(1)
    assert stage(world) is Stage.SLEEP_CALL
    world.sleep_gate.set()
    await world.go(2, steps=4)
    assert world.runtime.terminated == world.runtime.restarted == ["task-a.1"]
    assert world.reports.told[-1].phase is Phase.READY and len(world.canaries) == 1


@pytest.mark.req("SLEEP-01", "SLEEP-03")
async def test_one_that_ended_as_the_order_came_may_wake(world: World) -> None:
    await world.run_to_ready()
    world.runtime.exits["task-a.1"] = Exit(1)
    await world.go(0.25)
    assert world.runtime.forgotten_for_now == ["task-a.1"]  # its log would go on
    to_sleep(world)
    await world.go(1)
    assert world.reports.told[-1].observed is Observed.GONE
    world.list(world.want())
    await world.go(2, steps=4)
    assert world.reports.told[-1].phase is Phase.READY and len(world.claims) == 2


@pytest.mark.req("SLEEP-03")
async def test_one_that_ended_while_it_was_wanted_wakes_as_the_next_attempt_alone(world: World) -> None:
    """Asleep and awake again for the server, before this agent heard of either."""
    await world.run_to_ready()
    world.runtime.exits["task-a.1"] = Exit(1)
    await world.go(0.25)
    world.list(world.want())
    await world.go(2, steps=4)
    assert (stage(world), len(world.claims)) == (Stage.EXITED, 1)
    world.list(world.want(attempt=2))
    await world.go(2, steps=4)
    assert world.supervisor.attempts["task-a", 2].stage is Stage.RUNNING
    assert (world.reports.told[-1].attempt, world.reports.told[-1].phase) == (2, Phase.READY)


@pytest.mark.req("SLEEP-02")
async def test_wake_starts_the_same_container_and_waits_for_a_token(world: World) -> None:
    await fall_asleep(world)
    told = len(world.reports.told)
    world.canary_answers = ["/v1/completions answers 500: no", ""]
    world.list(world.want())
    await world.go(0.5)
    assert world.runtime.restarted == ["task-a.1"] and len(world.claims) == 1
    assert world.supervisor.running()[0].observed is Observed.STARTING
    assert [t.phase for t in world.reports.told[told:]] == [Phase.LOADING]
    await world.go(3, steps=6)
    assert [t.phase for t in world.reports.told[told:]] == [Phase.LOADING, Phase.READY]
    assert len(world.canaries) == 2 and world.canaries[0].model == "tiny"
    assert SleepMarks(Path(world.settings.state_dir) / "asleep").get(KEY) is None
    # a later restart of the same attempt by nobody: only a wake asks for a token
    await world.go(30, steps=30)
    assert len(world.canaries) == 2


@pytest.mark.req("SLEEP-02", "AGENT-08")
async def test_wake_is_judged_by_the_loading_window(world: World) -> None:
    world.specs[KEY] = make_spec(
        engine="vllm",
        sleep_enabled=True,
        health_check=HealthCheck(start_period_seconds=20, interval_seconds=2, unhealthy_threshold=2),
    )
    await fall_asleep(world)
    world.runtime.log_file(*KEY).write_text("loading\nno such weights\n")
    world.probe_answer = Probe(Outcome.FAILED, "refused")
    world.list(world.want())
    await world.go(19, steps=38)
    assert stage(world) is Stage.RUNNING
    await world.go(20, steps=40)
    last = world.reports.told[-1]
    assert (last.observed, last.lines) == (Observed.EXITED, ["loading", "no such weights"])
    assert last.why is not None and last.why.code is Code.LOAD_TIMEOUT
    assert world.canaries == []


@pytest.mark.req("SLEEP-02")
async def test_canary_that_stays_wrong_fails_the_wake(world: World) -> None:
    await fall_asleep(world)
    world.canary_answers = ["/v1/completions answers 200: {}"] * 1000
    world.list(world.want())
    await world.go(59, steps=118)
    assert stage(world) is Stage.RUNNING and world.supervisor.running()[0].observed is Observed.STARTING
    await world.go(5, steps=10)
    last = world.reports.told[-1]
    assert last.observed is Observed.EXITED
    assert last.why == reason(Code.CANARY_FAILED, why="/v1/completions answers 200: {}")
    assert [t.phase for t in world.reports.told].count(Phase.READY) == 1


@pytest.mark.req("SLEEP-02", "AGENT-07")
async def test_port_that_is_busy_at_the_wake_is_waited_for(world: World) -> None:
    await fall_asleep(world)
    world.runtime.start_errors = [PortBusy(20001)] * 3
    world.list(world.want())
    await world.go(10, steps=20)
    assert world.reports.told[-1].phase is Phase.READY
    to_sleep(world)
    await world.go(6, steps=12)
    assert stage(world) is Stage.ASLEEP
    world.runtime.start_errors = [PortBusy(20001)] * 1000
    world.list(world.want())
    await world.go(140, steps=280)
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.EXITED, reason(Code.PORT_CONFLICT, port=20001))


@pytest.mark.req("SLEEP-03")
@pytest.mark.parametrize("found_out", ["asleep", "at the wake"])
async def test_container_that_is_gone_is_made_anew_by_the_servers_word(world: World, found_out: str) -> None:
    await fall_asleep(world)
    if found_out == "asleep":
        world.runtime.kept_as["task-a.1"] = Kept.GONE
        await world.go(1)
    else:
        world.runtime.start_errors = [KeptLost("no such container")]
        world.reports.unacknowledged.add(KEY)
        world.list(world.want())
        await world.go(1)
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.GONE, reason(Code.CONTAINER_GONE))
    assert world.runtime.forgotten_for_now == ["task-a.1"]
    assert world.logs.finished[-1] == ("task-a", 1, False)
    assert len(world.claims) == 1
    # not before the server knows: its claim is granted for what it knows to be gone only
    world.reports.unacknowledged.clear()
    world.list(world.want())
    await world.go(3, steps=6)
    assert [s.attempt for s in world.runtime.started] == [1, 1] and len(world.claims) == 2
    assert world.reports.told[-1].phase is Phase.READY
    assert len(world.canaries) == 1  # the new one too has to show a token


@pytest.mark.req("SLEEP-02", "AGENT-09")
async def test_next_run_still_asks_for_the_token_of_a_wake(world: World, tmp_path: Path) -> None:
    await fall_asleep(world)
    world.probe_answer = Probe(Outcome.LOADING)
    world.list(world.want())
    await world.go(1)
    later = next_run(world, tmp_path, stopped=False)
    later.list(later.want())
    later.canary_answers = ["no"]
    await later.go(0.5)
    assert [t.phase for t in later.reports.told] == []
    await later.go(3, steps=6)
    assert [t.phase for t in later.reports.told] == [Phase.READY] and len(later.canaries) == 2


@pytest.mark.req("SLEEP-01")
async def test_agent_without_a_disk_for_marks_goes_on(world: World, tmp_path: Path) -> None:
    (tmp_path / "asleep").rmdir()
    await fall_asleep(world)
    world.list(world.want())
    await world.go(2, steps=4)
    assert world.reports.told[-1].phase is Phase.READY and len(world.canaries) == 1
