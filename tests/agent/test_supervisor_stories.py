"""Whatever the order of events, a task never has two engines, and a last wish is carried out."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck as Check
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.codes import Code, reason
from agent.contract.messages import ClaimRefused, DesiredTask, SleepOrder
from agent.contract.states import Desired, Observed
from agent.errors import ServerUnreachable
from agent.runtime.base import Exit, Kept
from agent.supervisor.health import Work
from tests.agent.fakes import World
from tests.examples import examples

EVENTS = st.lists(
    st.sampled_from(
        (
            *("run", "stop", "next", "nothing", "partial", "unchanged", "exit", "refuse", "away", "wait"),
            *("sleep", "sleep", "run", "removed", "started", "no_token", "busy"),
        )
    ),
    max_size=25,
)


@pytest.mark.req("AGENT-02", "AGENT-09")
@given(EVENTS)
@settings(max_examples=examples(120), deadline=None, suppress_health_check=[Check.function_scoped_fixture])
def test_never_two_engines_of_one_task(tmp_path: Path, events: list[str]) -> None:
    asyncio.run(_play(World(tmp_path), events))


async def _play(world: World, events: list[str]) -> None:
    attempt, desired = 1, Desired.RUN
    for event in events:
        if event in ("run", "stop"):
            desired = Desired(event)
            world.list(world.want(attempt, desired=desired))
        elif event == "sleep":
            order = SleepOrder(drain_seconds=10, settle_seconds=2)
            world.list(DesiredTask("task-a", attempt, Desired.STOP, 10, order))
        elif event == "removed":
            world.runtime.kept_as[f"task-a.{attempt}"] = Kept.GONE
        elif event == "started":
            world.runtime.kept_as[f"task-a.{attempt}"] = Kept.RUNS
        elif event == "no_token":
            world.canary_answers = ["no"] * 20
        elif event == "busy":
            world.works = [Work(steps=1, running=1, waiting=0)] * 10
        elif event == "next":
            attempt, desired = attempt + 1, Desired.RUN
            world.list(world.want(attempt))
        elif event in ("nothing", "partial"):
            world.list(complete=event == "nothing")
        elif event == "unchanged":
            world.unchanged()
        elif event == "exit":
            world.runtime.exits[f"task-a.{attempt}"] = Exit(1)
        elif event == "refuse":
            world.claim_answers = [ClaimRefused(reason(Code.CLAIM_LOST))]
        elif event == "away":
            world.claim_answers = [ServerUnreachable("away")]
        await world.go(7)
        assert len(world.supervisor.running()) <= 1
    world.claim_answers, world.canary_answers, world.works = [], [], []
    world.runtime.kept_as.clear()
    world.runtime.exits.pop(f"task-a.{attempt + 1}", None)
    world.list(world.want(attempt + 1))
    await world.go(60, steps=6)
    assert [r.attempt for r in world.supervisor.running()] == [attempt + 1]
    world.list(world.want(attempt + 1, desired=Desired.STOP))
    await world.go(60, steps=6)
    assert world.supervisor.running() == []
    assert world.reports.told[-1].observed is Observed.GONE
