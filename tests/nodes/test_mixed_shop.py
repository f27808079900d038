"""A mixed shop: shared, whole, lent and protected cards on three machines, and what each who waits is told.

Each scene has a machine of its own: two cards of one kind, 46,068 MB each.
"""

from typing import Any

import pytest

from tests.fakes.vllm.image import ANSWER
from tests.nodes.fleet import CARDS, Fleet, Person
from tests.nodes.machine import PYTHON
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]
L20, A100, RTX = CARDS["one"], CARDS["two"], CARDS["three"]


class Shop:
    """What is asked for there, and what is said about it."""

    def __init__(self, fleet: Fleet, image: str) -> None:
        self.fleet, self.image = fleet, image

    def service(self, name: str, kind: str, cards: int = 1, **fields: Any) -> str:
        task = {"image": self.image, "gpu_type": kind, "gpu_required": cards}
        task["model_path"] = str(self.fleet.model.parent)
        return self.fleet.create(name, task, **fields)

    def training(self, name: str, kind: str, cards: int = 1, **fields: Any) -> str:
        """Works until it is stopped."""
        command = [PYTHON, "-c", "import time; time.sleep(3600)"]
        task = {"image": self.image, "gpu_type": kind, "gpu_required": cards, "command": command}
        return self.fleet.create(name, task, task_type="training", **fields)

    def explain(self, group: str, person: Person | None = None) -> dict[str, Any]:
        """What is said of its one task."""
        told = (person or self.fleet.member).call("GET", f"/api/v1/task-groups/{group}/explain")
        (task,) = told["tasks"]
        return dict(task)

    def refused(self, group: str, code: str, person: Person | None = None) -> dict[str, Any]:
        """What is said of it, once it waits for this reason."""

        def told() -> dict[str, Any] | None:
            task = self.explain(group, person)
            words = [word["reason"]["code"] for word in task["nodes"]]
            return task if task["status"] == "pending" and code in words else None

        return dict(until(told, lambda: f"{self.explain(group, person)}\n{self.printed()}"))

    def await_status(self, group: str, status: str) -> dict[str, Any]:
        def has_it() -> bool:
            return bool(self.fleet.task(group)["status"] == status)

        until(has_it, lambda: f"{self.fleet.task(group)}\n{self.explain(group)}\n{self.printed()}")
        return self.fleet.task(group)

    def cards_of(self, group: str) -> dict[str, int | None]:
        """The cards that its task holds now, and how many percent of each."""
        task = self.fleet.task(group)["id"]
        rows = self.fleet.stack.rows(
            "SELECT card.uuid, share.percent FROM workloads_cardclaim share"
            " JOIN fleet_card card ON card.id = share.card_id"
            " JOIN workloads_claim claim ON claim.id = share.claim_id"
            f" JOIN workloads_task task ON task.id = claim.task_id AND task.public_id = '{task}'"
            " WHERE claim.released_at IS NULL AND claim.attempt = task.attempt"
        )
        return dict(rows)

    def reasons(self, group: str) -> list[str]:
        events = self.fleet.member.rows(f"/api/v1/task-groups/{group}/events")
        return [event["reason"]["code"] for event in events if event["reason"]]

    def printed(self) -> str:
        return self.fleet.stack.printed()[-3000:]


@pytest.fixture
def shop(fleet: Fleet, vllm: str) -> Shop:
    return Shop(fleet, vllm)


def word_of(task: dict[str, Any], node: str) -> dict[str, Any]:
    """What one node says."""
    (word,) = [word for word in task["nodes"] if word["node"] == node]
    return dict(word["reason"])


@pytest.mark.req("SHARE-01", "SHARE-05", "SCHED-05", "SCHED-09", "SVC-14")
def test_two_share_a_card_a_third_is_told_the_numbers_and_a_stranger_nothing_of_them(shop: Shop) -> None:
    fleet = shop.fleet
    alone = shop.training("alone", L20)
    first = shop.service("first", L20, gpu_memory_utilization=45)
    for group in (alone, first):
        fleet.await_running(group)

    # There is room on the card by every number; the two tenants share no group.
    stranger = fleet.member_of("works", "bob")
    asked = {"image": shop.image, "gpu_type": L20, "model_path": str(fleet.model.parent)}
    theirs = fleet.create("theirs", asked, person=stranger, gpu_memory_utilization=20)
    told = shop.refused(theirs, "red_line", stranger)
    assert "out of bounds" in word_of(told, "one")["text"]
    assert not any(name in str(told) for name in ("lab", "ada", "alone", "first"))

    second = shop.service("second", L20, gpu_memory_utilization=45)
    fleet.await_running(second)
    assert shop.cards_of(first) == shop.cards_of(second) and set(shop.cards_of(first).values()) == {45}
    assert shop.cards_of(alone).keys().isdisjoint(shop.cards_of(first))
    line = "import json; print(json.dumps(open('/proc/1/cmdline').read().split('\\0')))"
    told = fleet.machines["one"].run_inside(fleet.task(second)["id"], line)
    assert told[told.index("--gpu-memory-utilization") + 1] == "0.45"

    third = shop.service("third", L20, gpu_memory_utilization=45)
    told = shop.refused(third, "commitment_full")
    word = word_of(told, "one")
    assert (word["params"]["wanted_percent"], word["params"]["largest_percent"]) == (45, 0)
    assert "45 %" in word["text"]
    assert {word_of(told, name)["code"] for name in ("two", "three")} == {"gpu_type_mismatch"}
    assert told["summary"].startswith("InsufficientResources") and "45 %" in told["summary"]
    assert fleet.await_answer("second") == ANSWER


@pytest.mark.req("SHARE-04", "SLEEP-05", "SCHED-07", "SCHED-08", "SVC-14")
def test_training_borrows_a_sleepers_card_and_gives_it_back(shop: Shop) -> None:
    fleet = shop.fleet
    wide = shop.service("wide", A100, 2, parallelism="tensor_parallel", world_size=2)
    fleet.await_running(wide)
    assert shop.cards_of(wide) == {"GPU-two-1": None, "GPU-two-2": None}

    run = shop.training("run", A100)
    told = shop.refused(run, "cards_short")  # nothing is lent while it serves
    assert word_of(told, "two")["params"] == {"wanted": 1, "free": 0}
    fleet.member.call("POST", f"/api/v1/tasks/{fleet.task(wide)['id']}/sleep")
    shop.await_status(run, "running")
    sleeper = shop.await_status(wide, "sleeping")
    (loan,) = shop.explain(run)["loans"]
    assert (loan["kind"], loan["other"]) == ("borrowed", "wide")
    assert shop.cards_of(run).keys() <= shop.cards_of(wide).keys() and len(shop.cards_of(run)) == 1

    woken = fleet.member.call("POST", f"/api/v1/tasks/{sleeper['id']}/wake?wait=0")
    assert woken["code"] == "wake_card_lent", woken
    assert shop.explain(wide)["reason"]["code"] == "wake_card_lent"
    shop.await_status(wide, "running")  # once the loan is over, by itself
    assert fleet.await_answer("wide") == ANSWER
    assert "loan_ended" in shop.reasons(run)
    told = shop.refused(run, "cards_short")
    assert told["loans"] == [] and shop.cards_of(run) == {}


@pytest.mark.req("SCHED-11", "SVC-14")
def test_the_more_urgent_has_the_card_and_who_gave_way_comes_back(shop: Shop) -> None:
    fleet = shop.fleet
    low = shop.training("low", RTX, 2, preemptible=True)
    fleet.await_running(low)
    lasting = shop.service("lasting", RTX)  # of no higher priority: it waits
    told = shop.refused(lasting, "cards_short")
    assert word_of(told, "three")["params"] == {"wanted": 1, "free": 0}
    assert fleet.task(low)["status"] == "running"

    high = shop.service("high", RTX, 2, parallelism="tensor_parallel", world_size=2, priority=10)
    shop.await_status(high, "running")
    assert shop.cards_of(high) == {"GPU-three-1": None, "GPU-three-2": None}
    told = shop.refused(low, "cards_short")
    assert told["gave_way_at"] is not None and "preempted" in shop.reasons(low)
    assert word_of(told, "three")["params"] == {"wanted": 2, "free": 0}
    assert told["line"] == {"position": 1, "waiting": 2}

    fleet.member.call("DELETE", f"/api/v1/task-groups/{lasting}")
    fleet.member.call("DELETE", f"/api/v1/task-groups/{high}")
    back = shop.await_status(low, "running")
    assert back["attempt"] == 2
