"""Sleep and wake as the supervisor carries them out (SLEEP-01, -02, -03)."""

import asyncio
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import DesiredTask, HealthCheck, SleepOrder
from agent.contract.states import Desired, Observed, Phase
from agent.runtime.base import Adopted, Exit, Instance, Kept, Starting
from agent.supervisor.attempt import Stage
from agent.supervisor.health import Outcome, Probe, Work
from agent.supervisor.sleepmarks import Mark, SleepMarks
from tests.agent.fakes import World, make_spec

KEY = ("task-a", 1)
ORDER = SleepOrder(drain_seconds=60, settle_seconds=3)
BUSY = Work(steps=1, running=2, waiting=1)
QUIET = Work(steps=1, running=0, waiting=0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.runtime.outlives_agent = True
    made.specs[KEY] = make_spec(engine="vllm", sleep_enabled=True)
    return made


def to_sleep(world: World, order: SleepOrder = ORDER) -> None:
    world.list(DesiredTask(*KEY, Desired.STOP, 10, order))


def stage(world: World) -> Stage:
    return world.supervisor.attempts[KEY].stage


async def fall_asleep(world: World) -> None:
    await world.run_to_ready()
    to_sleep(world)
    await world.go(5, steps=10)
    assert stage(world) is Stage.ASLEEP


def next_run(world: World, folder: Path, *, stopped: bool) -> World:
    """Another run of the agent finds the container."""
    later = World(folder)
    later.runtime.outlives_agent = True
    spec = world.specs[KEY]
    later.runtime.adopted = [Adopted(Instance(*KEY, "task-a.1", [20001]), spec, 30.0, stopped)]
    if stopped:
        later.runtime.exits["task-a.1"] = Exit(0)
    later.now = 5000.0
    return later


@pytest.mark.req("SLEEP-01", "LIFE-04")
async def test_quiet_then_asked_then_stopped_and_kept(world: World) -> None:
    await world.run_to_ready()
    world.works = [BUSY, BUSY, BUSY]
    to_sleep(world)
    await world.go(2, steps=4)
    assert (stage(world), world.sleep_calls, world.runtime.terminated) == (Stage.DRAINING, [], [])
    await world.go(4, steps=8)
    ((target, level),) = world.sleep_calls
    assert (target.api_port, target.key, level) == (20001, "", 2)
    assert world.runtime.terminated == world.runtime.kept_ones == ["task-a.1"]
    assert world.runtime.forgotten == [] and world.logs.finished == [("task-a", 1, False)]
    last = world.reports.told[-1]
    assert (last.phase, last.observed, last.why, last.exit_code) == (
        Phase.LEAVING,
        Observed.ASLEEP,
        reason(Code.ASLEEP),
        0,
    )
    assert last.notes == []
    (running,) = world.supervisor.running()
    assert (running.observed, running.host_ports) == (Observed.ASLEEP, [20001])


@pytest.mark.req("SLEEP-01")
async def test_quiet_is_without_a_break_and_the_queue_counts(world: World) -> None:
    await world.run_to_ready()
    waiting = Work(steps=1, running=0, waiting=1)
    world.works = [QUIET, waiting, QUIET, None] * 10
    to_sleep(world)
    await world.go(15, steps=30)
    assert len(world.works) < 30 and stage(world) is Stage.DRAINING
    world.works = [None]
    await world.go(3, steps=6)
    assert stage(world) is Stage.DRAINING
    await world.go(3, steps=6)
    assert stage(world) is Stage.ASLEEP


@pytest.mark.req("SLEEP-01")
@pytest.mark.parametrize(("work", "asleep"), [(None, True), (BUSY, False)])
async def test_an_engine_that_does_not_say_is_quiet_where_no_gateway_uses_it(
    world: World, work: Work | None, asleep: bool
) -> None:
    """One that says it is still busy has callers that no gateway knows."""
    await world.run_to_ready()
    world.work_answer = work
    to_sleep(world, SleepOrder(drain_seconds=60, settle_seconds=3, quiet=True))
    await world.go(6, steps=12)
    assert (stage(world) is Stage.ASLEEP) is asleep
    assert not asleep or Code.DRAIN_CUT not in [note.code for note in world.reports.told[-1].notes]


@pytest.mark.req("SLEEP-01")
@pytest.mark.parametrize(("work", "requests"), [(BUSY, 3), (None, "?")])
async def test_requests_that_do_not_end_are_cut_at_the_deadline(
    world: World, work: Work | None, requests: object
) -> None:
    await world.run_to_ready()
    world.work_answer = work
    to_sleep(world)
    await world.go(59, steps=60)
    assert stage(world) is Stage.DRAINING
    await world.go(3, steps=6)
    assert world.reports.told[-1].observed is Observed.ASLEEP
    assert world.reports.told[-1].notes == [reason(Code.DRAIN_CUT, requests=requests, after_s=60)]


@pytest.mark.req("SLEEP-01", "AGENT-17")
@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"engine": "llamacpp"}, reason(Code.SLEEP_CALL_SKIPPED, engine="llamacpp")),
        ({"engine": "", "image": "own:1"}, reason(Code.SLEEP_CALL_SKIPPED, engine="-")),
        (
            {"engine": "vllm", "sleep_enabled": False},
            reason(Code.SLEEP_CALL_FAILED, why="sleep_routes_closed"),
        ),
    ],
)
async def test_engine_without_a_sleep_call_is_stopped_all_the_same(
    world: World, changes: dict[str, object], note: object
) -> None:
    world.specs[KEY] = make_spec(**changes)
    await fall_asleep(world)
    assert world.sleep_calls == [] and world.runtime.terminated == ["task-a.1"]
    assert world.reports.told[-1].notes == [note]


@pytest.mark.req("SLEEP-01", "PAR-03")
async def test_a_stage_behind_the_head_is_stopped_without_a_call_of_its_own(world: World) -> None:
    check = HealthCheck(type="none")
    world.specs[KEY] = make_spec(engine="vllm", sleep_enabled=True, ports=[], health_check=check)
    await fall_asleep(world)
    assert world.sleep_calls == [] and world.runtime.terminated == ["task-a.1"]
    assert world.reports.told[-1].notes == []


@pytest.mark.req("SLEEP-01")
async def test_failed_sleep_call_is_noted_and_the_container_stopped(world: World) -> None:
    world.sleep_answer = "/sleep?level=2 answers 500: out of memory"
    await fall_asleep(world)
    assert world.reports.told[-1].notes == [reason(Code.SLEEP_CALL_FAILED, why=world.sleep_answer)]


@pytest.mark.req("SLEEP-01", "AGENT-08")
async def test_health_is_not_judged_on_the_way_to_sleep(world: World) -> None:
    world.specs[KEY] = make_spec(engine="vllm", health_check=HealthCheck(start_period_seconds=1))
    await world.run_to_ready()
    world.probe_answer = Probe(Outcome.FAILED, "refused")
    world.work_answer = BUSY
    to_sleep(world)
    await world.go(50, steps=100)
    assert stage(world) is Stage.DRAINING


@pytest.mark.req("SLEEP-01")
async def test_called_back_before_anything_was_done_it_serves_on(world: World) -> None:
    await world.run_to_ready()
    world.work_answer = BUSY
    to_sleep(world)
    await world.go(10, steps=10)
    world.list(world.want())
    await world.go(2, steps=4)
    assert stage(world) is Stage.RUNNING and world.runtime.terminated == []
    assert world.reports.told[-1].phase is Phase.READY


@pytest.mark.req("SLEEP-01", "LIFE-04")
@pytest.mark.parametrize("at", [Stage.DRAINING, Stage.SLEEP_CALL, Stage.STOPPING, Stage.ASLEEP, Stage.WAKING])
async def test_stop_from_every_stage_of_sleep(world: World, at: Stage) -> None:
    await world.run_to_ready()
    world.work_answer = BUSY if at is Stage.DRAINING else QUIET
    world.sleep_gate = asyncio.Event() if at is Stage.SLEEP_CALL else None
    world.runtime.obeys = at is not Stage.STOPPING
    to_sleep(world)
    await world.go(5, steps=10)
    if at is Stage.WAKING:
        world.runtime.starting = [Starting(Phase.NONE)] * 100
        world.list(world.want())
        await world.go(1)
    assert stage(world) is at
    world.list(world.want(desired=Desired.STOP))
    world.runtime.obeys = True
    await world.go(12, steps=24)
    assert world.reports.told[-1].observed is Observed.GONE
    assert world.runtime.forgotten == ["task-a.1"] and world.runtime.forgotten_for_now == []
    assert world.logs.finished[-1] == ("task-a", 1, True)
    assert world.supervisor.running() == []


@pytest.mark.req("SLEEP-01")
@pytest.mark.parametrize("at", [Stage.DRAINING, Stage.SLEEP_CALL])
async def test_end_on_the_way_to_sleep_is_noted_and_kept(world: World, at: Stage) -> None:
    await world.run_to_ready()
    world.work_answer = BUSY if at is Stage.DRAINING else QUIET
    world.sleep_gate = asyncio.Event()
    to_sleep(world)
    await world.go(5, steps=10)
    assert stage(world) is at
    world.runtime.exits["task-a.1"] = Exit(137, out_of_memory=True)
    await world.go(1)
    last = world.reports.told[-1]
    assert (last.observed, last.exit_code) == (Observed.ASLEEP, 137)
    assert last.notes == [reason(Code.OUT_OF_MEMORY, exit_code=137)]
    assert world.runtime.kept_ones == ["task-a.1"]


@pytest.mark.req("SLEEP-01")
async def test_one_that_was_never_ready_is_stopped_at_once(world: World) -> None:
    world.probe_answer = Probe(Outcome.LOADING)
    world.list(world.want())
    await world.go(steps=2)
    assert stage(world) is Stage.RUNNING
    to_sleep(world)
    await world.go(1)
    assert world.sleep_calls == [] and world.reports.told[-1].observed is Observed.ASLEEP


@pytest.mark.req("SLEEP-01", "SLEEP-03")
async def test_order_for_what_is_not_here_says_so(world: World) -> None:
    world.specs[KEY] = make_spec(engine="vllm", sleep_enabled=True)
    to_sleep(world)
    await world.go()
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.GONE, reason(Code.CONTAINER_GONE))
    assert world.claims == []


@pytest.mark.req("SLEEP-01")
async def test_one_that_somebody_else_started_is_stopped_again(world: World) -> None:
    await fall_asleep(world)
    world.runtime.exits.clear()
    world.runtime.kept_as["task-a.1"] = Kept.RUNS
    world.runtime.obeys = False
    await world.go(0.25)
    assert stage(world) is Stage.STOPPING
    assert world.supervisor.running()[0].observed is Observed.STARTING
    world.runtime.kept_as.clear()
    world.runtime.exits["task-a.1"] = Exit(0)
    await world.go(1)
    assert stage(world) is Stage.ASLEEP and world.runtime.terminated == ["task-a.1"] * 2


@pytest.mark.req("SLEEP-01", "AGENT-09")
async def test_next_run_finds_it_asleep_and_says_so(world: World, tmp_path: Path) -> None:
    await fall_asleep(world)
    later = next_run(world, tmp_path, stopped=True)
    later.supervisor.step(later.now)
    (running,) = later.supervisor.running()
    assert running.observed is Observed.ASLEEP  # in its first heartbeat already
    assert [t.observed for t in later.reports.told] == [Observed.ASLEEP]
    await later.go(60, steps=60)  # no list yet
    assert stage(later) is Stage.ASLEEP
    later.list(later.want())
    await later.go(2, steps=4)
    assert later.reports.told[-1].phase is Phase.READY
    assert (later.runtime.restarted, later.claims, len(later.canaries)) == (["task-a.1"], [], 1)


@pytest.mark.req("SLEEP-01", "AGENT-09")
async def test_next_run_stops_one_whose_engine_may_have_dropped_its_weights(
    world: World, tmp_path: Path
) -> None:
    world.sleep_gate = asyncio.Event()
    await world.run_to_ready()
    to_sleep(world)
    await world.go(5, steps=10)
    assert stage(world) is Stage.SLEEP_CALL
    later = next_run(world, tmp_path, stopped=False)
    later.list(later.want())  # even where it is wanted again meanwhile
    await later.go(3, steps=6)
    assert later.runtime.terminated == later.runtime.restarted == ["task-a.1"]
    assert len(later.canaries) == 1 and later.reports.told[-1].phase is Phase.READY


@pytest.mark.req("AGENT-09")
async def test_stopped_container_without_a_mark_has_failed(world: World, tmp_path: Path) -> None:
    later = next_run(world, tmp_path, stopped=True)
    await later.go(1)
    assert [t.observed for t in later.reports.told] == [Observed.EXITED]


@pytest.mark.req("SLEEP-01")
async def test_sleeper_that_the_server_no_longer_knows_is_removed(world: World) -> None:
    await fall_asleep(world)
    world.list()
    for _ in range(3):
        world.unchanged()
    await world.go(60, steps=4)
    assert world.runtime.forgotten == ["task-a.1"] and world.supervisor.attempts == {}
    assert SleepMarks(Path(world.settings.state_dir) / "asleep").get(KEY) is None


def test_marks_outlive_the_agent_and_what_is_no_mark_goes(tmp_path: Path) -> None:
    marks = SleepMarks(tmp_path / "asleep")
    marks.set(KEY, Mark.SLEEP)
    marks.set(("task-b", 12), Mark.WAKE)
    (tmp_path / "asleep" / "task-c.1.sleep.part").write_text("sleep")
    (tmp_path / "asleep" / "task-d.1.sleep").write_text("what")
    again = SleepMarks(tmp_path / "asleep")
    assert (again.get(KEY), again.get(("task-b", 12)), again.get(("task-d", 1))) == (
        Mark.SLEEP,
        Mark.WAKE,
        None,
    )
    again.keep_only({KEY})
    assert sorted(f.name for f in (tmp_path / "asleep").iterdir()) == ["task-a.1.sleep"]


@pytest.mark.req("SLEEP-01", "AGENT-03")
async def test_leaving_with_a_sleeper_of_the_process_runtime(world: World) -> None:
    world.runtime.outlives_agent = False
    await fall_asleep(world)
    await world.supervisor.leave(lambda: world.now)
    assert world.reports.told[-1].observed is Observed.GONE
