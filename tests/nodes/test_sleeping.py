"""A service on a node of several sleeps and wakes in the same container (SLEEP-01 to -04)."""

from typing import Any

import pytest

from tests.fakes.tiny_model import ANSWER
from tests.nodes.fleet import CARDS, Fleet
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


def sleep(fleet: Fleet, group: str) -> dict[str, Any]:
    """The task, once it sleeps."""
    fleet.member.call("POST", f"/api/v1/tasks/{fleet.task(group)['id']}/sleep")
    until(lambda: fleet.task(group)["status"] == "sleeping", lambda: fleet.stack.printed()[-3000:])
    return fleet.task(group)


def wake(fleet: Fleet, task: dict[str, Any]) -> dict[str, Any]:
    return dict(fleet.member.call("POST", f"/api/v1/tasks/{task['id']}/wake?wait=0"))


@pytest.mark.req("SLEEP-01", "SLEEP-02")
def test_it_wakes_in_the_container_that_slept(fleet: Fleet) -> None:
    two = fleet.machines["two"]
    group = fleet.serve("sleeper", kind=CARDS["two"])
    fleet.await_answer("sleeper")
    before, container = fleet.task(group), two.containers(fleet.task(group)["id"])
    task = sleep(fleet, group)
    assert not two.api.inspect_container(task["id"])["State"]["Running"]
    assert fleet.ports_of(task) != [] and task["node"] == "two"  # its port and place stay held
    wake(fleet, task)
    fleet.await_running(group)
    assert two.containers(task["id"]) == container
    assert fleet.task(group)["attempt"] == before["attempt"]
    assert fleet.await_answer("sleeper") == ANSWER


@pytest.mark.req("SLEEP-03")
def test_a_wake_without_its_container_makes_a_new_one_and_says_so(fleet: Fleet) -> None:
    two = fleet.machines["two"]
    group = fleet.serve("bare", kind=CARDS["two"])
    (container,) = two.containers(fleet.task(group)["id"])
    task = sleep(fleet, group)
    two.api.remove_container(container, force=True)
    held = "SELECT 1 FROM workloads_claim WHERE incarnation = '' AND released_at IS NULL"
    until(lambda: fleet.stack.rows(held), lambda: fleet.told("two"))
    woken = wake(fleet, task)
    assert woken["code"] == "wake_new_container", woken
    fleet.await_running(group)
    assert two.containers(task["id"]) not in ([], [container])
    assert fleet.await_answer("bare") == ANSWER
