"""A node is emptied while somebody calls its services: each call gets its answer (LIFE-09)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.tiny_model import ANSWER
from tests.nodes.callers import callers
from tests.nodes.fleet import Fleet
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


@contextmanager
def draining(fleet: Fleet, name: str) -> Iterator[None]:
    """A node being emptied, back in service after."""
    where = f"/api/v1/nodes/{fleet.machines[name].node_id}"
    fleet.operator.call("POST", f"{where}/drain")
    try:
        yield
    finally:
        fleet.operator.call("POST", f"{where}/resume")


def work(fleet: Fleet, name: str) -> dict[str, Any]:
    return dict(fleet.operator.call("GET", f"/api/v1/nodes/{fleet.machines[name].node_id}/work"))


@pytest.mark.req("LIFE-09", "GW-10")
def test_a_service_of_one_moves_without_a_call_that_fails(fleet: Fleet) -> None:
    two, three = fleet.machines["two"], fleet.machines["three"]
    with fleet.only("two"):
        group = fleet.serve("moved")
    old = fleet.task(group)
    assert old["node"] == "two"
    fleet.await_answer("moved")
    fleet.set_node("one", cordoned=True)
    steps: list[str] = []
    with callers(fleet, "moved") as got:
        until(lambda: len(got) > 10, "calls are made")
        with draining(fleet, "two"):

            def is_empty() -> bool:
                now = work(fleet, "two")
                steps.extend(left["step"] for left in now["left"] if left["step"] not in steps[-1:])
                # Whoever goes, goes after another one serves.
                if not two.containers(old["id"]):
                    assert "running" in [task["status"] for task in fleet.tasks(group)]
                return not now["left"] and now["done"] == [
                    {"tenant": "lab", "service": "moved", "step": "done"}
                ]

            until(is_empty, lambda: f"{steps} {work(fleet, 'two')}\n{fleet.told('three')}", 90)
            until(lambda: not two.containers(), lambda: fleet.told("two"), 20)
            told = len(got)
            until(lambda: len(got) > told + 10, "calls go on")
    assert [answer for answer in got if answer != ANSWER] == []
    assert [step for step in steps if step != "waiting"] == ["starting", "switched", "stopping"], steps
    until(lambda: len(fleet.tasks(group)) == 1, lambda: str(fleet.tasks(group)), 20)
    new = fleet.task(group)
    assert (new["node"], new["rank"], new["role"]) == ("three", old["rank"], "replica")
    assert len(three.containers(new["id"])) == 1
    events = list(fleet.member.rows(f"/api/v1/task-groups/{group}/events"))
    at = {event["to"]: event["at"] for event in events if event["from"] == "running"}
    ready = max(event["at"] for event in events if event["to"] == "running")
    assert ready <= at["draining"], events


@pytest.mark.req("LIFE-09")
def test_without_a_place_the_service_goes_on_and_a_cancelled_drain_leaves_it_alone(fleet: Fleet) -> None:
    with fleet.only("two"):
        group = fleet.serve("stays")
    old = fleet.task(group)
    fleet.await_answer("stays")
    for name in ("one", "three"):
        fleet.set_node(name, cordoned=True)
    with callers(fleet, "stays") as got:
        with draining(fleet, "two"):
            until(
                lambda: [left["why"] for left in work(fleet, "two")["left"]] == ["drain_no_place"],
                lambda: str(work(fleet, "two")),
                20,
            )
            told, since = len(got), time.monotonic()
            until(lambda: len(got) > told + 20 and time.monotonic() - since > 3, "calls go on")
        fleet.set_node("three", cordoned=False)
        until(lambda: len(got) > told + 40, "calls go on")
    assert [answer for answer in got if answer != ANSWER] == []
    assert fleet.task(group) == old
