"""A container ends on its own, in each way there is: its node says so within two heartbeats, the cause
has its name, and the service is built anew (AGENT-03, AGENT-09, RECOV-01)."""

from pathlib import Path
from typing import Any

import pytest

from tests.breaks.page import assert_shown
from tests.fakes.tiny_model import ANSWER
from tests.nodes.fleet import CARDS, Fleet
from tests.nodes.machine import Machine
from tests.nodes.servers import any_server
from tests.nodes.test_outages import pids_of
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

HOG = "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))"
# The one that is under way when it ends, and two more.
HEARTBEATS = 3


def kill(machine: Machine, container: str, task: str) -> None:
    machine.api.kill(container, "KILL")


def remove(machine: Machine, container: str, task: str) -> None:
    machine.api.remove_container(container, force=True)


def end_well(machine: Machine, container: str, task: str) -> None:
    """The engine ends by itself, as if its work were done."""
    machine.api.kill(container, "TERM")


def run_out_of_memory(machine: Machine, container: str, task: str) -> None:
    """Something in the container takes all its memory, and the kernel chooses the engine."""
    (process,) = pids_of(machine, task)
    Path(f"/proc/{process}/oom_score_adj").write_text("1000")
    made = machine.api.exec_create(task, ["/usr/local/bin/python3", "-c", HOG])
    machine.api.exec_start(made["Id"], detach=True)
    until(lambda: not Path(f"/proc/{process}").exists(), "the kernel has chosen")


ENDS = {
    "killed by hand": (kill, "exited"),
    "out of memory": (run_out_of_memory, "out_of_memory"),
    "ended with 0": (end_well, "exited"),
    "removed by hand": (remove, "container_gone"),
}


def beats(fleet: Fleet, name: str) -> int:
    """How many heartbeats of its agent's run have come."""
    query = "SELECT heartbeat_sequence FROM fleet_liveness l JOIN fleet_node n ON n.id = l.node_id"
    return int(fleet.stack.rows(f"{query} WHERE n.name = '{name}'")[0][0])


@pytest.mark.req("AGENT-03", "AGENT-09", "RECOV-01", "LIFE-02", "OPS-06")
@any_server
@pytest.mark.parametrize("how", ENDS)
def test_the_end_is_told_named_and_mended(fleet: Fleet, how: str) -> None:
    act, cause = ENDS[how]
    two = fleet.machines["two"]
    group = fleet.serve("ends", kind=CARDS["two"])
    task = fleet.task(group)
    (container,) = two.containers(task["id"])
    fleet.await_answer("ends")

    come = 0

    def failed() -> list[dict[str, Any]]:
        nonlocal come
        come = beats(fleet, "two")
        events = fleet.member.rows(f"/api/v1/task-groups/{group}/events")
        return [event for event in events if event["to"] == "failed"]

    act(two, container, task["id"])
    before = beats(fleet, "two")
    (end,) = until(failed, lambda: fleet.told("two"), 30)
    assert come <= before + HEARTBEATS
    assert end["reason"]["code"] == cause, end
    assert_shown(end["reason"]["text"])

    until(lambda: fleet.task(group)["attempt"] == task["attempt"] + 1, lambda: fleet.told("two"), 30)
    fleet.await_running(group)
    assert fleet.await_answer("ends") == ANSWER
    now = fleet.task(group)
    assert now["rebuilds"] == 1
    events = fleet.member.rows(f"/api/v1/task-groups/{group}/events")
    assert_shown(next(event["reason"]["text"] for event in events if event["from"] == "failed"))
    (new,) = two.containers(task["id"])
    assert new != container
    assert len(fleet.ports_of(task)) == 1
