"""What the supervisor does where starts take long and instances outlive the agent."""

from pathlib import Path

import pytest

from agent.contract.codes import Code
from agent.contract.messages import HealthCheck
from agent.contract.states import Desired, Observed, Phase
from agent.runtime.base import Adopted, Exit, Instance, PortBusy, Starting
from agent.supervisor.health import Outcome, Probe
from tests.agent.fakes import World, make_spec


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.runtime.outlives_agent = True
    return made


def leave_behind(world: World, attempt: int = 1, **changes: object) -> None:
    """An earlier run of the agent left this instance."""
    spec = make_spec(attempt=attempt, engine_key="the-key", **changes)
    world.runtime.adopted.append(
        Adopted(Instance("task-a", attempt, f"task-a.{attempt}", [20001]), spec, age_s=500.0)
    )


@pytest.mark.req("AGENT-09", "AGENT-02")
async def test_adopted_instance_is_named_watched_and_not_started(world: World) -> None:
    leave_behind(world)
    world.supervisor.step(world.now)
    assert [(r.task_id, r.attempt, r.host_ports) for r in world.supervisor.running()] == [
        ("task-a", 1, [20001])
    ]
    assert world.reports.told == []
    world.list(world.want())
    await world.go(steps=3)
    assert world.claims == [] and world.runtime.started == []
    assert [t.phase for t in world.reports.told] == [Phase.READY]
    assert world.probes[0].key == "the-key"
    assert world.logs.followed == [("task-a", 1)]


@pytest.mark.req("AGENT-09")
async def test_adopted_instance_that_has_ended_is_told_with_its_code(world: World) -> None:
    leave_behind(world)
    world.runtime.exits["task-a.1"] = Exit(9)
    world.list(world.want())
    await world.go(steps=2)
    (told,) = world.reports.told
    assert (told.observed, told.exit_code) == (Observed.EXITED, 9)
    assert world.runtime.forgotten == ["task-a.1"]


@pytest.mark.req("AGENT-09")
async def test_adopted_instance_is_removed_only_after_two_complete_lists_and_its_grace(world: World) -> None:
    leave_behind(world)
    await world.go()
    world.list(complete=False)
    world.list(complete=False)
    await world.go(100)
    assert world.runtime.terminated == []
    world.list()
    await world.go(100)
    assert world.runtime.terminated == []
    world.list()
    await world.go(1)
    assert world.runtime.terminated == ["task-a.1"]
    await world.go(1)
    assert world.reports.told[-1].observed is Observed.GONE


@pytest.mark.req("AGENT-09")
async def test_adopted_older_attempt_ends_before_the_new_one_starts(world: World) -> None:
    leave_behind(world)
    world.runtime.obeys = False
    world.list(world.want(2))
    await world.go(1, steps=3)
    assert world.runtime.terminated == ["task-a.1"] and world.runtime.started == []
    world.runtime.exits["task-a.1"] = Exit(0)
    await world.go(1, steps=3)
    assert [spec.attempt for spec in world.runtime.started] == [2]


@pytest.mark.req("AGENT-08")
async def test_busy_adopted_engine_is_not_taken_for_one_that_never_loads(world: World) -> None:
    leave_behind(world, health_check=HealthCheck(interval_seconds=10))
    world.probe_answer = Probe(Outcome.FAILED, "too busy")
    world.list(world.want())
    await world.go(11)
    assert world.runtime.terminated == []  # one failure, though it is older than every start period
    world.probe_answer = Probe(Outcome.OK)
    await world.go(11)
    assert world.reports.told[-1].phase is Phase.READY


@pytest.mark.req("LIFE-08", "AGENT-19")
async def test_each_phase_of_a_long_start_is_told_once(world: World) -> None:
    world.runtime.starting = [
        Starting(Phase.NONE),
        *[Starting(Phase.PULLING)] * 5,
        *[Starting(Phase.CREATING)] * 4,
    ]
    world.list(world.want())
    await world.go(steps=5)
    phases = [t.phase for t in world.reports.told]
    assert phases == [Phase.CLAIMED, Phase.PULLING, Phase.CREATING, Phase.LOADING, Phase.READY]


@pytest.mark.req("AGENT-09")
async def test_start_under_way_is_given_up_before_its_end_is_told(world: World) -> None:
    world.runtime.starting = [Starting(Phase.PULLING)] * 100
    world.runtime.abandon_takes = 6
    world.list(world.want())
    await world.go(steps=2)
    world.list(world.want(desired=Desired.STOP))
    world.supervisor.step(world.now)
    assert world.reports.told[-1].phase is Phase.PULLING and len(world.supervisor.running()) == 1
    await world.go(steps=3)
    assert world.reports.told[-1].observed is Observed.GONE
    assert world.runtime.started == []


@pytest.mark.req("AGENT-07")
async def test_waiting_for_a_port_counts_from_the_first_conflict(world: World) -> None:
    world.runtime.starting = [Starting(Phase.PULLING)]
    world.list(world.want())
    await world.go()
    world.runtime.starting = [Starting(Phase.PULLING)] * 4
    await world.go(600)  # a long pull
    world.runtime.start_errors = [PortBusy(20001)]
    await world.go(1)
    await world.go(20)
    assert world.reports.told[-1].phase is Phase.READY


@pytest.mark.req("AGENT-09", "AGENT-08")
async def test_while_docker_is_silent_nothing_is_concluded(world: World) -> None:
    await world.run_to_ready()
    told = len(world.reports.told)
    world.runtime.silent = True
    world.probe_answer = Probe(Outcome.FAILED, "its port is away with dockerd")
    await world.go(600, steps=30)
    assert world.reports.told[told:] == [] and world.runtime.terminated == []
    assert len(world.supervisor.running()) == 1
    world.runtime.silent = False
    await world.go(21, steps=2)
    assert world.runtime.terminated == []  # counted anew: two failures are not three
    world.probe_answer = Probe(Outcome.OK)
    await world.go(60, steps=6)
    assert world.reports.told[told:] == []


@pytest.mark.req("AGENT-09")
async def test_instance_that_vanished_is_told_as_gone_by_another_hand(world: World) -> None:
    await world.run_to_ready()
    world.runtime.exits["task-a.1"] = Exit(None, vanished=True)
    await world.go(1)
    told = world.reports.told[-1]
    assert told.why is not None and told.why.code is Code.CONTAINER_GONE
    assert (told.observed, told.exit_code) == (Observed.EXITED, None)


@pytest.mark.req("AGENT-09")
async def test_leaving_leaves_containers_alone(world: World) -> None:
    await world.run_to_ready()
    told = len(world.reports.told)
    await world.supervisor.leave(lambda: world.now)
    assert world.runtime.terminated == world.runtime.killed == []
    assert world.reports.told[told:] == []
