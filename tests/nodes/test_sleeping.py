"""A vLLM on a node of several sleeps and wakes, through the whole chain (SLEEP-01 to -04). The engine is the
fake one: it says in its log what it was asked for."""

from typing import Any

import pytest

from tests.breaks.page import assert_shown
from tests.fakes.vllm.image import ANSWER, order_next
from tests.nodes.fleet import CARDS, Fleet
from tests.nodes.machine import Machine
from tests.nodes.servers import any_server
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


def serve(fleet: Fleet, name: str, image: str) -> str:
    """A vLLM on the second machine; its group's id."""
    with fleet.only("two"):
        group = fleet.serve(name, kind=CARDS["two"], image=image, model_path=str(fleet.model.parent))
    assert fleet.await_answer(name) == ANSWER
    return group


def sleep(fleet: Fleet, group: str) -> dict[str, Any]:
    """The task, once it sleeps."""
    said = fleet.member.call("POST", f"/api/v1/tasks/{fleet.task(group)['id']}/sleep")
    assert said["code"] == "sleep_requested" and said["text"] and said["next"], said
    until(lambda: fleet.task(group)["status"] == "sleeping", lambda: fleet.stack.printed()[-3000:])
    return fleet.task(group)


def wake(fleet: Fleet, task: dict[str, Any]) -> dict[str, Any]:
    return dict(fleet.member.call("POST", f"/api/v1/tasks/{task['id']}/wake?wait=0"))


def said_by(machine: Machine, task: dict[str, Any]) -> list[str]:
    """What the engine told of its starts and its sleep, over all runs of its container."""
    lines = machine.api.logs(task["id"]).decode().splitlines()
    return [line.partition("] ")[2].partition(" on http")[0] for line in lines]


STARTED, ASKED = "Starting vLLM API server 0", "sleep is asked for, level 2"


@pytest.mark.req("SLEEP-01", "SLEEP-02", "AGENT-04")
def test_it_wakes_in_the_container_that_slept(fleet: Fleet, vllm: str) -> None:
    two = fleet.machines["two"]
    group = serve(fleet, "sleeper", vllm)
    before, container = fleet.task(group), two.containers(fleet.task(group)["id"])
    made = two.api.inspect_container(before["id"])["Config"]
    assert "VLLM_SERVER_DEV_MODE=1" in made["Env"] and "--enable-sleep-mode" in made["Cmd"]
    task = sleep(fleet, group)
    assert not two.api.inspect_container(task["id"])["State"]["Running"]
    assert said_by(two, task) == [STARTED, ASKED]
    held = f"SELECT c.percent FROM workloads_cardclaim c JOIN workloads_claim m ON m.id = c.claim_id \
JOIN workloads_task t ON t.id = m.task_id WHERE m.released_at IS NULL AND t.public_id = '{task['id']}'"
    assert len(fleet.stack.rows(held)) == 1
    assert fleet.ports_of(task) != [] and task["node"] == "two"  # its port and place stay held

    order_next(fleet.model.parent, frozen=True)  # up, and without its first token
    woken = wake(fleet, task)
    assert woken["code"] == "wake_requested" and woken["text"] and woken["next"], woken
    until(lambda: said_by(two, task) == [STARTED, ASKED, STARTED], lambda: fleet.told("two"))
    until(lambda: running_in(two, task) == 1, "the agent asks for one token")
    assert fleet.task(group)["status"] == "waking" and fleet.ask_code("sleeper") == 503
    two.run_inside(task["id"], THAW)
    fleet.await_running(group)
    assert two.containers(task["id"]) == container
    assert fleet.task(group)["attempt"] == before["attempt"]
    assert fleet.await_answer("sleeper") == ANSWER


OWN = "http://127.0.0.1:8000"
THAW = f"""
import urllib.request
print(urllib.request.urlopen("{OWN}/fake", b'{{"frozen": false}}').status)
"""
METRICS = f"""
import json, urllib.request
print(json.dumps(urllib.request.urlopen("{OWN}/metrics").read().decode()))
"""


def running_in(machine: Machine, task: dict[str, Any]) -> int:
    """How many requests the engine has in work, by its own word."""
    lines = str(machine.run_inside(task["id"], METRICS)).splitlines()
    (line,) = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return int(float(line.split()[-1]))


@pytest.mark.req("SLEEP-03")
@any_server
def test_a_wake_without_its_container_makes_a_new_one_and_says_so(fleet: Fleet, vllm: str) -> None:
    two = fleet.machines["two"]
    group = serve(fleet, "bare", vllm)
    (container,) = two.containers(fleet.task(group)["id"])
    task = sleep(fleet, group)
    two.api.remove_container(container, force=True)
    held = "SELECT 1 FROM workloads_claim WHERE incarnation = '' AND released_at IS NULL"
    until(lambda: fleet.stack.rows(held), lambda: fleet.told("two"))
    woken = wake(fleet, task)
    assert (woken["code"], woken["wake_requested"]) == ("wake_new_container", False), woken
    assert_shown(woken["text"])
    fleet.await_running(group)
    assert two.containers(task["id"]) not in ([], [container])
    assert fleet.await_answer("bare") == ANSWER


@pytest.mark.req("SLEEP-04")
@any_server
def test_a_wake_on_a_node_that_is_offline_moves_nothing_and_is_carried_out_elsewhere(
    fleet: Fleet, vllm: str
) -> None:
    two = fleet.machines["two"]
    group = serve(fleet, "cut-off", vllm)
    task = sleep(fleet, group)
    (container,) = two.containers(task["id"])
    two.cut()
    until(lambda: not fleet.node("two")["online"], lambda: fleet.told("two"), 40)
    assert fleet.task(group)["status"] == "sleeping"  # nobody asked for it: it waits for its node
    woken = wake(fleet, task)
    assert (woken["code"], woken["status"]) == ("wake_node_offline", "sleeping"), woken
    assert woken["wake_requested"] and woken["next"], woken
    assert_shown(woken["text"])
    assert wake(fleet, task)["code"] in ("wake_node_offline", "already_starting")  # asked twice
    # No other machine has such a card: it is asked of recovery, and waits for room.
    until(lambda: fleet.task(group)["status"] == "pending", lambda: str(fleet.task(group)), 40)
    two.mend()
    until(lambda: fleet.is_up("two"), lambda: fleet.told("two"), 40)
    fleet.await_running(group, 90)
    now = fleet.task(group)
    assert (now["node"], now["attempt"]) == ("two", task["attempt"] + 1)
    assert fleet.await_answer("cut-off", 30) == ANSWER
    assert container not in two.containers(task["id"]) and len(fleet.ports_of(task)) == 1
