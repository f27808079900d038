"""An agent, a Docker engine or a machine goes away and comes back (AGENT-03, AGENT-09, RECOV-02)."""

import time

import pytest

from tests.breaks.page import assert_shown
from tests.fakes.tiny_model import ANSWER
from tests.nodes.callers import callers
from tests.nodes.fleet import CARDS, Fleet
from tests.nodes.machine import Machine
from tests.nodes.servers import SILENT_S
from tests.production.traffic import traffic_by
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


@pytest.mark.req("AGENT-03", "AGENT-09")
def test_a_killed_agents_next_run_adopts_and_calls_go_on(fleet: Fleet) -> None:
    two = fleet.machines["two"]
    group = fleet.serve("adopted", kind=CARDS["two"])
    task = fleet.task(group)
    before, runs = two.containers(task["id"]), len(two.runs())
    fleet.await_answer("adopted")
    two.kill()
    two.start()
    until(lambda: len(two.runs()) > runs and fleet.is_up("two"), two.log, 30)
    assert fleet.await_answer("adopted") == ANSWER
    assert two.containers(task["id"]) == before
    now = fleet.task(group)
    assert (now["id"], now["attempt"], now["rebuilds"]) == (task["id"], task["attempt"], 0)


@pytest.mark.req("AGENT-03", "AGENT-09", "OPS-06")
def test_a_killed_docker_comes_back_with_the_same_container(fleet: Fleet) -> None:
    """Under traffic through the node's door. A published port is held by a process that ends with dockerd,
    so the model's calls may be refused while it is away, and the API's may not."""
    two = fleet.machines["two"]
    group = fleet.serve("kept", kind=CARDS["two"])
    task = fleet.task(group)
    before = two.containers(task["id"])
    (process,) = pids_of(two, task["id"])
    fleet.await_answer("kept")
    with fleet.openai() as sdk, traffic_by(sdk, "kept", fleet.member) as traffic:
        until(lambda: traffic.all_flow({}, 3), lambda: f"traffic flows: {traffic}")
        two.engine.kill()
        two.engine.restart()
        good = dict(traffic.good)
        until(lambda: traffic.all_flow(good, 5), lambda: f"traffic goes on: {traffic}")
        refused = len(traffic.clear)
        until(lambda: traffic.all_flow(good, 15), lambda: f"traffic goes on: {traffic}")
        assert traffic.clear[refused:] == [], "once it is back none is refused"
    assert (traffic.wrong, traffic.failed("api")) == ([], [])
    assert fleet.await_answer("kept", 30) == ANSWER
    assert two.containers(task["id"]) == before
    assert pids_of(two, task["id"]) == [process], "the same process: it was not started again"
    now = fleet.task(group)
    assert (now["status"], now["attempt"], now["rebuilds"]) == ("running", task["attempt"], 0)


def pids_of(machine: Machine, task_id: str) -> list[int]:
    """The first process of each container of a task, as the machine numbers it."""
    found = [machine.api.inspect_container(one) for one in machine.containers(task_id)]
    return [int(container["State"]["Pid"]) for container in found]


@pytest.mark.req("RECOV-02", "AGENT-09", "GW-10")
def test_work_of_a_node_that_is_cut_off_moves_and_is_served_once(fleet: Fleet) -> None:
    with fleet.only("two", "three"):
        group = fleet.serve("moving", replicas=2)
    moving = next(task for task in fleet.tasks(group) if task["node"] == "two")
    two = fleet.machines["two"]
    (container,) = two.containers(moving["id"])
    three = fleet.machines["three"]
    stayed = next(task for task in fleet.tasks(group) if task["node"] == "three")
    before = three.containers(stayed["id"]), pids_of(three, stayed["id"])
    fleet.await_answer("moving")
    with callers(fleet, "moving") as got:
        until(lambda: len(got) > 10, "calls are made")
        two.cut()
        cut_at = time.monotonic()
        until(lambda: not fleet.node("two")["online"], "the node is offline", SILENT_S + 20)
        until(lambda: where(fleet, group, moving["id"]) not in ("two", None), "it moved", 30)
        events = fleet.member.rows(f"/api/v1/task-groups/{group}/events")
        (moved,) = [event["reason"] for event in events if event["reason"]["code"] == "node_lost"]
        assert_shown(moved["text"])
        fleet.await_running(group)
        told = len(got)
        until(lambda: len(got) > told + 10, "calls go on", 30)
        assert time.monotonic() - cut_at > SILENT_S / 2
        assert two.containers(moving["id"]) == [container]  # there it runs on: nobody could tell it
        two.mend()
        until(lambda: fleet.is_up("two"), lambda: fleet.told("two"), 40)
        until(lambda: not two.containers(moving["id"]), lambda: fleet.told("two"), 40)
        told = len(got)
        until(lambda: len(got) > told + 10, "calls go on", 30)
    assert [answer for answer in got if answer != ANSWER] == []
    everywhere = [one for machine in fleet.machines.values() for one in machine.containers(moving["id"])]
    assert len(everywhere) == 1 and everywhere != [container]
    now = next(task for task in fleet.tasks(group) if task["id"] == moving["id"])
    assert now["attempt"] == moving["attempt"] + 1
    until(lambda: len(fleet.ports_of(moving)) == 1, "one port is held", 10)
    after = three.containers(stayed["id"]), pids_of(three, stayed["id"])
    assert after == before, "what stayed was not started again"
    assert next(task for task in fleet.tasks(group) if task["id"] == stayed["id"]) == stayed


def where(fleet: Fleet, group: str, task_id: str) -> str | None:
    (node,) = [task["node"] for task in fleet.tasks(group) if task["id"] == task_id]
    return node
