"""kill -9 of each part under light traffic: calls go on or fail clearly, every loop goes on within 5 s of
when it is due, nothing is done or counted twice (OPS-06).

From the kill on where a second one runs, else from the part's return. Docker's own kill is in tests/nodes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.production.traffic import Traffic, traffic_of
from tests.production_stack import PERIODS, ProductionStack
from tests.stack import until
from tests.steady import SteadyClock, steady_clock_of

pytestmark = pytest.mark.req("OPS-06")

RESUME_S = 5.0
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
# Whose calls may be refused while a part is away: the proxy finds out by a call that its process is gone.
NEEDED_BY = {"wsgi": "api", "asgi": "model", "agent": "model"}


def await_every_loop(stack: ProductionStack, clock: SteadyClock, moment: float) -> None:
    """Each has run, well, after a moment: at most RESUME_S late."""
    for name, period_s in PERIODS.items():
        clock.within(
            period_s + RESUME_S,
            lambda name=name: stack.last_run(name) > moment,
            lambda name=name: f"{name} runs again",
        )


@contextmanager
def traffic_that_is_counted_once(stack: ProductionStack) -> Iterator[Traffic]:
    """Each answered call has one row of usage; one whose answer was cut off may have one."""
    began = datetime.now(UTC)
    with traffic_of(stack) as traffic:
        until(lambda: traffic.all_flow({}, 3), lambda: f"traffic flows: {traffic}")
        yield traffic

    def counted() -> int:
        query = "SELECT count(*) FROM usage_usagerecord WHERE http_status = 200 AND started_at > ?"
        return int(stack.rows(query, began)[0][0])

    until(lambda: counted() >= traffic.good["model"], lambda: f"all are rows: {counted()}, {traffic}")
    assert counted() <= traffic.good["model"] + len(traffic.failed("model"))
    assert traffic.wrong == []


def everything_answers(stack: ProductionStack) -> bool:
    try:
        stack.ask()
        stack.api()
    except Exception:
        return False
    return True


def identity(stack: ProductionStack) -> dict[str, Any]:
    group = stack.demo_group()
    return {"group": group["id"], "tasks": [task["id"] for task in group["tasks"]]}


def begin_service(stack: ProductionStack, name: str) -> dict[str, Any]:
    """Asked for, and not yet placed."""
    model = str(stack.data_dir / "models" / "tiny.gguf")
    task = {"image": IMAGE, "gpu_required": 0, "model_path": model}
    return dict(stack.api().call("POST", "/api/v1/task-groups", {"name": name, "task": task}))


def assert_begun_once(stack: ProductionStack, group_id: str) -> None:
    """It runs by one placement, one start and one move of each kind."""
    api, address = stack.api(), f"/api/v1/task-groups/{group_id}"
    until(lambda: api.call("GET", address)["status"] == "running", lambda: str(api.call("GET", address)))
    (task,) = api.call("GET", address)["tasks"]
    of_task = "JOIN workloads_task t ON t.id = x.task_id WHERE t.public_id = ?"
    claims = stack.rows(f"SELECT x.attempt, x.released_at FROM workloads_claim x {of_task}", task["id"])
    assert claims == [(1, None)]
    moves = f"SELECT x.from_state, x.to_state, x.code, count(*) FROM workloads_event x {of_task}"
    twice = stack.rows(f"{moves} GROUP BY 1, 2, 3 HAVING count(*) > 1", task["id"])
    assert twice == []
    assert len(stack.rows("SELECT 1 FROM fleet_port WHERE owner = ?", task["id"])) == 1
    assert len(stack.engines()) == 2, "the demo's and its own"
    api.call("DELETE", address)
    until(lambda: len(stack.engines()) == 1, "its engine has ended")


@pytest.mark.parametrize("part", ["worker", "scheduler", "beat", "wsgi", "asgi", "redis"])
def test_a_killed_part(production: ProductionStack, part: str) -> None:
    before, count = identity(production), len(production.processes(part))
    with steady_clock_of(production) as clock, traffic_that_is_counted_once(production) as traffic:
        begun = begin_service(production, f"under-a-killed-{part}")  # its steps are under way meanwhile
        good_before = dict(traffic.good)
        production.kill(production.part(part))
        killed_at = time.time()
        if count == 1:
            until(lambda: len(production.processes(part)) == count, "it is started again")
            killed_at = time.time()
        await_every_loop(production, clock, killed_at)
        until(lambda: traffic.all_flow(good_before, 5), lambda: f"traffic goes on: {traffic}")
        until(lambda: len(production.processes(part)) == count, "it is started again")
    assert [words for words in traffic.clear if not words.startswith(NEEDED_BY.get(part, "-"))] == []
    until(lambda: everything_answers(production), "all of it answers")
    assert_begun_once(production, begun["id"])
    assert identity(production) == before


def test_a_killed_agent(production: ProductionStack) -> None:
    """Its engines end with it (they are processes); what was there comes back under the same ids."""
    before, claims = identity(production), live_claims(production)
    with steady_clock_of(production) as clock, traffic_that_is_counted_once(production) as traffic:
        production.kill(production.part("agent"))
        killed_at = time.time()
        await_every_loop(production, clock, killed_at)
        until(lambda: not production.engines(), "its engines end with it")
        seen = traffic.good["model"]
        until(lambda: traffic.good["model"] >= seen + 5, lambda: f"it serves again: {traffic}", limit_s=90)
    assert traffic.failed("api") == [], "the API goes on"
    assert identity(production) == before
    assert live_claims(production) == claims
    assert len(production.engines()) == 1


def live_claims(stack: ProductionStack) -> int:
    return int(stack.rows("SELECT count(*) FROM workloads_claim WHERE released_at IS NULL")[0][0])
