"""The supervisor makes observed equal desired, whatever the order of events."""

import asyncio
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import ClaimRefused, DesiredTask, HeartbeatUnchanged
from agent.contract.states import Desired, Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable
from agent.runtime.base import Exit, PortBusy, StartRefused
from agent.supervisor.health import Outcome, Probe
from tests.agent.fakes import World, make_spec

STARTED = [
    (1, Phase.CLAIMED, Observed.STARTING),
    (1, Phase.CREATING, Observed.STARTING),
    (1, Phase.LOADING, Observed.STARTING),
    (1, Phase.READY, Observed.READY),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.req("AGENT-02", "LIFE-08")
async def test_listed_attempt_is_claimed_started_and_ready(world: World) -> None:
    await world.run_to_ready()
    assert world.reports.phases() == STARTED
    assert [(c.incarnation, c.task_id, c.attempt) for c in world.claims] == [("inc-1", "task-a", 1)]
    assert world.logs.followed == [("task-a", 1)]
    (running,) = world.supervisor.running()
    assert (running.task_id, running.observed, running.host_ports) == ("task-a", Observed.READY, [20001])


@pytest.mark.req("AGENT-02")
async def test_steps_may_be_repeated_without_effect(world: World) -> None:
    await world.run_to_ready()
    for _ in range(50):
        world.unchanged()
        await world.go(0.1)
    assert world.reports.phases() == STARTED
    assert len(world.runtime.started) == len(world.claims) == 1


async def test_stop_is_asked_nicely_and_confirmed(world: World) -> None:
    await world.run_to_ready()
    world.runtime.log_file("task-a", 1).write_text("one\ntwo\n")
    world.list(world.want(desired=Desired.STOP))
    await world.go(1)
    assert world.runtime.terminated == ["task-a.1"]
    assert world.runtime.killed == []
    last = world.reports.told[-1]
    assert (last.observed, last.exit_code, last.lines) == (Observed.GONE, 0, ["one", "two"])
    assert world.logs.finished == [("task-a", 1, True)]
    assert world.supervisor.running() == []


async def test_engine_that_does_not_listen_is_killed_after_its_grace(world: World) -> None:
    world.runtime.obeys = False
    await world.run_to_ready()
    world.list(world.want(desired=Desired.STOP))
    await world.go(1)
    await world.go(9)
    assert world.runtime.killed == []
    assert world.reports.told[-1].observed is not Observed.GONE
    await world.go(1.1)
    await world.go(0)
    assert world.runtime.killed == ["task-a.1"]
    assert (world.reports.told[-1].observed, world.reports.told[-1].exit_code) == (Observed.GONE, 137)


async def test_stop_of_what_was_never_here_is_confirmed_at_once_and_again(world: World) -> None:
    world.list(world.want(desired=Desired.STOP))
    await world.go()
    assert world.reports.phases() == [(1, Phase.LEAVING, Observed.GONE)]
    await world.go(29)
    assert len(world.reports.told) == 1
    await world.go(2)
    assert world.reports.phases() == [(1, Phase.LEAVING, Observed.GONE)] * 2
    assert world.claims == []
    world.list()
    await world.go(1)
    assert world.supervisor.attempts == {}


@pytest.mark.req("AGENT-09")
async def test_exit_behind_its_back_is_reported_and_not_restarted(world: World) -> None:
    await world.run_to_ready()
    world.runtime.log_file("task-a", 1).write_text("".join(f"line {i}\n" for i in range(100)))
    world.runtime.exits["task-a.1"] = Exit(139)
    await world.go(0.25)
    last = world.reports.told[-1]
    assert (last.observed, last.exit_code) == (Observed.EXITED, 139)
    assert last.why == reason(Code.EXITED, exit_code=139)
    assert last.lines == [f"line {i}" for i in range(80, 100)]
    for _ in range(20):
        world.unchanged()
        await world.go(60)
    assert len(world.runtime.started) == 1
    assert world.supervisor.running() == []
    world.list(world.want(2))
    await world.go(steps=3)
    assert [s.attempt for s in world.runtime.started] == [1, 2]


@pytest.mark.req("AGENT-02", "LIFE-08")
async def test_heartbeat_never_overtakes_the_report_of_an_end(world: World) -> None:
    await world.run_to_ready()
    world.reports.unacknowledged.add(("task-a", 1))
    world.runtime.exits["task-a.1"] = Exit(1)
    await world.go(0.25)
    assert [(r.task_id, r.observed) for r in world.supervisor.running()] == [("task-a", Observed.EXITED)]
    world.reports.unacknowledged.clear()
    assert world.supervisor.running() == []


async def test_attempt_that_waits_for_its_port_is_answered_for(world: World) -> None:
    world.runtime.start_errors = [PortBusy(20001)] * 10
    world.list(world.want())
    await world.go(1)
    assert [(r.task_id, r.observed) for r in world.supervisor.running()] == [("task-a", Observed.STARTING)]


async def test_memory_kill_has_its_own_code(world: World) -> None:
    await world.run_to_ready()
    world.runtime.exits["task-a.1"] = Exit(137, out_of_memory=True)
    await world.go(0.25)
    assert world.reports.told[-1].why == reason(Code.OUT_OF_MEMORY, exit_code=137)


async def test_new_attempt_waits_until_the_old_one_is_gone(world: World) -> None:
    world.runtime.obeys = False
    await world.run_to_ready()
    world.list(world.want(2))
    await world.go(5)
    assert world.runtime.terminated == ["task-a.1"]
    assert [s.attempt for s in world.runtime.started] == [1]
    await world.go(11)
    await world.go(0, steps=3)
    assert [s.attempt for s in world.runtime.started] == [1, 2]
    gone = next(i for i, t in enumerate(world.reports.told) if t.observed is Observed.GONE)
    begun = next(i for i, t in enumerate(world.reports.told) if t.attempt == 2 and t.phase is Phase.CREATING)
    assert gone < begun


@pytest.mark.req("AGENT-09")
async def test_removed_after_two_complete_lists_and_the_grace_only(world: World) -> None:
    await world.run_to_ready()
    await world.go(31)
    world.list()
    await world.go(1)
    assert world.runtime.terminated == []  # once may be a mistake
    world.unchanged()
    await world.go(1)
    assert world.runtime.terminated == ["task-a.1"]
    assert world.reports.told[-1].observed is Observed.GONE
    await world.go(1)
    assert world.supervisor.attempts == {}


@pytest.mark.req("AGENT-09")
async def test_young_one_is_kept_until_the_grace_ends(world: World) -> None:
    await world.run_to_ready()
    world.list()
    for _ in range(5):
        world.unchanged()
        await world.go(5)
    assert world.runtime.terminated == []
    await world.go(6)
    assert world.runtime.terminated == ["task-a.1"]


@pytest.mark.req("AGENT-09")
async def test_listed_again_in_between_is_kept(world: World) -> None:
    await world.run_to_ready()
    await world.go(100)
    for _ in range(6):
        world.list()
        await world.go(5)
        world.list(world.want())
        await world.go(5)
    assert world.runtime.terminated == []


@pytest.mark.req("AGENT-09", "AGENT-14")
async def test_partial_lists_and_silence_remove_nothing(world: World) -> None:
    await world.run_to_ready()
    await world.go(100)
    for _ in range(10):
        world.list(complete=False)
        await world.go(60)
    await world.go(100_000)
    assert world.runtime.terminated == []
    assert world.desired.hash == ""  # so that the next question asks for the whole list


@pytest.mark.req("AGENT-09")
async def test_unchanged_of_another_list_counts_for_nothing(world: World) -> None:
    await world.run_to_ready()
    await world.go(100)
    world.list()
    await world.go(1)
    for _ in range(5):
        world.desired.take(HeartbeatUnchanged("of-another"))
        await world.go(10)
    assert world.runtime.terminated == []


@pytest.mark.req("AGENT-02")
async def test_refused_claim_starts_nothing_and_waits(world: World) -> None:
    refusal = ClaimRefused(reason(Code.CLAIM_SUPERSEDED))
    world.claim_answers = [refusal, refusal]
    world.list(world.want())
    await world.go(5, steps=5)
    assert len(world.claims) == 1
    await world.go(16)
    assert len(world.claims) == 2
    world.list(world.want(), world.want(task_id="task-b"))  # another list: ask at once
    await world.go(0.1, steps=2)
    assert [c.task_id for c in world.claims].count("task-a") == 3
    assert len(world.runtime.started) == 2


@pytest.mark.parametrize("error", [ServerUnreachable("gone"), ServerRefused(403, "x", "y")])
async def test_claim_without_an_answer_is_asked_again(world: World, error: Exception) -> None:
    world.claim_answers = [error]
    world.list(world.want())
    await world.go(1)
    assert world.runtime.started == []
    await world.go(20)
    await world.go(1)
    assert len(world.runtime.started) == 1


@pytest.mark.req("AGENT-02")
async def test_claim_answered_for_another_task_starts_nothing(world: World) -> None:
    world.specs["task-a", 1] = make_spec("task-b", 1)
    world.list(DesiredTask("task-a", 1, Desired.RUN))
    await world.go(1)
    assert world.runtime.started == []


async def test_stop_during_the_claim_starts_nothing(world: World) -> None:
    world.claim_gate = asyncio.Event()
    world.list(world.want())
    await world.go(1)
    world.list(world.want(desired=Desired.STOP))
    await world.go(1)
    world.claim_gate.set()
    await world.go(1)
    await world.go(1)
    assert world.runtime.started == []
    assert world.reports.told[-1].observed is Observed.GONE


async def test_slow_claim_holds_up_no_other_attempt(world: World) -> None:
    await world.run_to_ready()
    world.claim_gate = asyncio.Event()
    world.list(world.want(), world.want(task_id="task-b"))
    await world.go(1)
    world.runtime.exits["task-a.1"] = Exit(1)
    await world.go(0.25)
    assert (world.reports.told[-1].task_id, world.reports.told[-1].observed) == ("task-a", Observed.EXITED)
    world.claim_gate.set()
    await world.go(0.25)


@pytest.mark.req("AGENT-05", "AGENT-03")
async def test_start_refused_fails_at_once_with_its_reason(world: World) -> None:
    why = reason(Code.PATH_NOT_ALLOWED, path="/etc")
    world.runtime.start_errors = [StartRefused(why)]
    world.list(world.want())
    await world.go(1)
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.EXITED, why)
    await world.go(100)
    assert len(world.claims) == 1


@pytest.mark.req("AGENT-07")
async def test_busy_port_is_tried_again_and_then_fails(world: World) -> None:
    world.runtime.start_errors = [PortBusy(20001), PortBusy(20001)]
    world.list(world.want())
    await world.go(1, steps=4)
    await world.go(2, steps=4)
    assert len(world.runtime.started) == 1

    other = World(Path(world.settings.state_dir))
    other.runtime.start_errors = [PortBusy(20001)] * 100
    other.list(other.want())
    await other.go(118, steps=118)
    assert other.reports.told[-1].phase is Phase.CREATING
    await other.go(20, steps=20)
    assert (other.reports.told[-1].observed, other.reports.told[-1].why) == (
        Observed.EXITED,
        reason(Code.PORT_CONFLICT, port=20001),
    )


@pytest.mark.req("AGENT-08")
async def test_unhealthy_engine_is_stopped_and_reported(world: World) -> None:
    await world.run_to_ready()
    world.probe_answer = Probe(Outcome.FAILED, "refused")
    await world.go(120, steps=12)
    tail = [(t.phase, t.observed, t.why.code if t.why else None) for t in world.reports.told[4:]]
    assert tail == [
        (Phase.UNHEALTHY, Observed.UNHEALTHY, Code.UNHEALTHY),
        (Phase.LEAVING, Observed.UNHEALTHY, Code.UNHEALTHY),
        (Phase.LEAVING, Observed.EXITED, Code.UNHEALTHY),
    ]
    assert world.runtime.terminated == ["task-a.1"]
    assert world.logs.finished == [("task-a", 1, False)]


@pytest.mark.req("AGENT-08")
async def test_log_that_grows_extends_loading(world: World) -> None:
    world.probe_answer = Probe(Outcome.FAILED, "refused")
    world.list(world.want())
    file = world.runtime.log_file("task-a", 1)
    for i in range(30):
        file.write_text("x" * i)
        await world.go(10)
    assert world.runtime.terminated == []
    await world.go(60, steps=6)
    assert world.runtime.terminated == ["task-a.1"]


@pytest.mark.req("RECOV-05")
async def test_fault_in_one_attempt_harms_no_other(world: World) -> None:
    world.list(world.want(), world.want(task_id="task-b"))
    await world.go(1, steps=2)
    world.runtime.breaks.add("task-a.1")
    await world.go(1, steps=2)
    assert [r.task_id for r in world.supervisor.running()] == ["task-b"]
    last = [t for t in world.reports.told if t.task_id == "task-a"][-1]
    assert (last.observed, last.why) == (Observed.EXITED, reason(Code.INTERNAL))


@pytest.mark.req("AGENT-03")
async def test_leaving_ends_the_engines_but_not_the_wish(world: World) -> None:
    await world.run_to_ready()
    await world.supervisor.leave(lambda: world.now)
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.EXITED, reason(Code.AGENT_RESTARTED))
    assert world.logs.finished == [("task-a", 1, False)]  # its log goes on in the next run


async def test_secrets_are_masked_in_the_last_lines(world: World) -> None:
    world.specs["task-a", 1] = make_spec(engine_key="engine-secret-1", env={"MY_TOKEN": "token-value-2"})
    await world.run_to_ready()
    world.runtime.log_file("task-a", 1).write_text("engine-secret-1 token-value-2 sk-abcdefgh12345\n")
    world.runtime.exits["task-a.1"] = Exit(1)
    await world.go(1)
    (line,) = world.reports.told[-1].lines
    assert set(line) == {"*", " "}
