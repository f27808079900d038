"""Preemption over many ticks: victims that leave slowly, and work that keeps coming back, come to rest."""

import random
from collections import Counter

import pytest

from apps.scheduling.policy.decide import decide
from tests.unit.scheduling.schedulers import commit_placements, commit_preemptions, release, together
from tests.unit.scheduling.store import Lease, Store
from tests.unit.scheduling.worlds import NOW, card, node, task, world

pytestmark = pytest.mark.req("SCHED-11")


class Ticks:
    """One scheduler over a store; a victim leaves so many ticks after it was evicted."""

    def __init__(self, tasks, nodes, leaves_after):
        self.store = Store(world(tasks, nodes))
        self.store.leases["place"] = ("it", 1)
        self.lease = Lease("place", "it", 1)
        self.leaves_after = leaves_after
        self.going = Counter()
        self.preemptions = []

    def tick(self):
        plan = decide(self.store.snapshot(), NOW)
        for unit in together(plan.placements):
            self._commit(commit_placements, unit)
        for unit in together(plan.preemptions):
            self._commit(commit_preemptions, unit)
        self.preemptions.append(plan.preemptions)
        for claim in self.store.live():
            if self.store.tasks[claim.task_id].state == "evicted":
                self.going[claim.number] += 1
                if self.going[claim.number] > self.leaves_after:
                    release(self.store, claim)
        return plan

    def _commit(self, commit, unit):
        for _ in commit(self.store, self.lease, unit):
            pass

    def come(self, *numbers):
        for number in numbers:
            self.store.tasks[number].state = "pending"

    def wait_for(self, *numbers):
        for number in numbers:
            self.store.tasks[number].state = "to come"

    def states(self):
        return {number: row.state for number, row in self.store.tasks.items()}


def test_a_slow_victim_is_asked_once_and_its_room_is_its_preemptors():
    """The victim comes back as a waiting task, and waits; another of low priority does not slip in."""
    low = [task(1, preemptible=True), task(2)]
    ticks = Ticks([*low, task(9, priority=5)], [node(1, card(1))], leaves_after=5)
    ticks.wait_for(2, 9)
    ticks.tick()
    ticks.come(2, 9)
    for _ in range(10):
        ticks.tick()

    assert ticks.states() == {1: "pending", 2: "pending", 9: "placed"}
    assert sum(len(made) for made in ticks.preemptions) == 1


def test_an_evicted_task_that_found_another_place_is_left_there():
    low = [task(1, preemptible=True)]
    high = [task(8, priority=5), task(9, priority=5)]
    ticks = Ticks([*low, *high], [node(1, card(1)), node(2, card(2), cordoned=True)], leaves_after=0)
    ticks.wait_for(8, 9)
    ticks.tick()
    ticks.come(8)
    ticks.tick()
    ticks.tick()
    ticks.store.base = world(ticks.store.base.tasks, [node(1, card(1)), node(2, card(2))])
    ticks.tick()
    ticks.come(9)
    for _ in range(5):
        ticks.tick()

    assert ticks.states() == {1: "placed", 8: "placed", 9: "pending"}


@pytest.mark.parametrize("seed", range(30))
def test_everything_comes_to_rest_and_nobody_is_evicted_twice(seed):
    chance = random.Random(seed)
    nodes = [node(n, *(card(10 * n + k) for k in range(chance.randint(1, 3)))) for n in (1, 2)]
    tasks = [
        task(
            number,
            priority=chance.randint(0, 3),
            gpu_required=chance.choice((1, 1, 2)),
            percent=chance.choice((None, 30, 45)),
            preemptible=chance.random() < 0.8,
            engine="llamacpp",
        )
        for number in range(1, 11)
    ]
    ticks = Ticks(tasks, nodes, leaves_after=chance.choice((0, 2)))
    ticks.wait_for(*range(4, 11))
    for number in range(4, 11):
        ticks.tick()
        ticks.come(number)
    for _ in range(30):
        ticks.tick()

    assert not any(ticks.preemptions[-5:])
    assert not ticks.store.kept
    assert max(row.evicted for row in ticks.store.tasks.values()) <= 1
    assert not [row for row in ticks.store.tasks.values() if row.state == "evicted"]
    for made in (one for plans in ticks.preemptions for one in plans):
        row = ticks.store.tasks[made.task_id]
        assert row.state == "placed" or row.evicted, "who room was made for stands there, or gave way itself"
