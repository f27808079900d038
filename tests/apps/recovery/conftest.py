"""Sweeps as the loop runs them, and tasks that are up on a node."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from agent.contract.states import Phase, State
from apps.core import ticks
from apps.core.models import TickRun
from apps.fleet.models import Node
from apps.recovery.loop import NAME
from apps.workloads.models import Task
from tests import factories


def sweep(now: datetime) -> dict[str, Any]:
    done = ticks.run_tick(NAME, now)
    assert done is not None, TickRun.objects.filter(name=NAME).values()
    return done


@pytest.fixture
def listening(now: datetime) -> None:
    """Sweeps have been running for an hour, the last one 5 s ago."""
    TickRun.objects.create(
        name=NAME,
        started_at=now - timedelta(seconds=5),
        outcome="done",
        detail={"listening_since": (now - timedelta(hours=1)).isoformat()},
    )


@pytest.fixture
def up(now: datetime) -> Callable[..., Task]:
    """`up(node, group?)`: a running task with its claim, taken on by the node's agent."""

    def run(node: Node, group: Any = None, **fields: Any) -> Task:
        task = factories.make_task(
            group,
            **{
                "state": State.RUNNING,
                "phase": Phase.READY,
                "attempt": 1,
                "node": node,
                "running_since": now - timedelta(hours=1),
                **fields,
            },
        )
        factories.make_claim(task, node, incarnation="run-1")
        return task

    return run
