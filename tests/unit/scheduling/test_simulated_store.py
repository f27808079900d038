"""Several schedulers at once on stale knowledge, dying at any step: nothing is given twice.

Ten thousand rounds of random interleavings on a simulated store; `test_place_together` shows the same on the
real database.
"""

import random
from collections import Counter

import pytest

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.snapshot import Snapshot
from tests.unit.scheduling.schedulers import GROUPS, Plans, outside, scheduler, whole
from tests.unit.scheduling.store import Steps, Store
from tests.unit.scheduling.worlds import NOW, card, node, task, world

pytestmark = pytest.mark.req("SCHED-12", "SCHED-01")

WORLDS = 40
# Five thousand rounds of each kind in the long run, a sample of them with every change.
SOME = [(100, many) for many in (2, 4, 8)]
SOME += [pytest.param(1_667, many, marks=pytest.mark.slow) for many in (2, 4, 8)]


def some_world(chance: random.Random) -> Snapshot:
    """Too little for all who want it: one or two nodes of up to three cards and four to eight tasks."""
    nodes = [
        node(
            number,
            *(card(10 * number + k) for k in range(chance.choice((1, 2, 3, 3)))),
            host_ipc=chance.choice((False, True, True)),
            inference_cap=chance.choice((None, 3)),
            port_first=100,
            port_last=chance.choice((101, 110)),
        )
        for number in range(1, chance.randint(1, 2) + 1)
    ]
    tasks, many = [], chance.randint(4, 8)
    while len(tasks) < many:
        number = len(tasks) + 1
        training = chance.random() < 0.35
        fields = {
            "tenant_id": chance.choice((1, 2)),
            "priority": chance.choice((0, 0, 1, 2)),
            "gpu_required": chance.choice((1, 1, 2)),
            "percent": chance.choice((None, 30, 45)),
            "task_type": TaskType.TRAINING if training else TaskType.INFERENCE,
            "ports": ((8000, chance.choice((0, 0, 101))),),
            "engine": "llamacpp",
            "may_borrow": training,
            "preemptible": chance.random() < 0.6,
        }
        size = 2 if chance.random() < 0.15 and number < many else 1
        if size == 2:
            fields |= {"gang": f"g{number}", "gang_size": 2, "ports": ((8000, 0),), "may_borrow": False}
        tasks += [task(number + rank, rank=rank, **fields) for rank in range(size)]
    return world(tasks, nodes, shared=chance.choice(GROUPS))


def begun(base: Snapshot, chance: random.Random, plans: Plans) -> Store:
    """A store where the work of the lowest priority runs or sleeps, and the rest is still to come."""
    store = Store(base)
    for row in store.tasks.values():
        row.state = "to come" if row.view.priority else "pending"
    to_end(scheduler(store, "first", "place", plans))
    for claim in store.live():
        row = store.tasks[claim.task_id]
        if row.view.task_type == TaskType.INFERENCE and chance.random() < 0.6:
            row.sleeping, row.lends, row.version = True, chance.random() < 0.8, row.version + 1
    return store


def to_end(steps: Steps) -> None:
    for _ in steps:
        pass


def play(base: Snapshot, chance: random.Random, many: int, plans: Plans, *, apart: bool) -> Store:
    """Many schedulers in one random order, each of which may die at any step; then one that finishes."""
    store = begun(base, chance, plans)
    runs = [scheduler(store, f"s{n}", f"l{n}" if apart else "place", plans) for n in range(many)]
    others = outside(store, chance)
    for _ in range(chance.randint(0, 12)):
        next(others)
    while runs:
        fate = chance.random()
        if fate < 0.1:
            next(others)
            continue
        run = chance.choice(runs)
        try:
            if fate < 0.12:
                run.close()
                runs.remove(run)
            else:
                for _ in range(chance.choice((1, 1, 2, 5, 30))):
                    next(run)
        except StopIteration:
            runs.remove(run)
    to_end(scheduler(store, "last", "place", plans))
    assert not store.locks
    return store


def rounds(count: int, many: int, *, apart: bool) -> Counter[str]:
    """How often each thing happened in so many rounds."""
    chance = random.Random(many)
    told: Counter[str] = Counter()
    for _ in range(WORLDS):
        base, plans = some_world(chance), {}
        for _ in range(count // WORLDS + 1):
            store = play(base, chance, many, plans, apart=apart)
            told += store.told
            told["placed"] += len(store.claims)
            told["borrowed"] += sum(one.borrowed for one in store.claims)
            told["evicted"] += sum(row.evicted for row in store.tasks.values())
            told["kept"] += len(store.kept)
    return told


@pytest.mark.parametrize(("count", "many"), SOME)
def test_schedulers_by_mistake_at_once_give_nothing_twice(count, many):
    """Each believes to be the only one: what holds is the check at the commit alone."""
    told = rounds(count, many, apart=True)

    assert not told["fenced"]
    assert min(told[what] for what in ("placed", "clashed", "borrowed", "evicted", "kept")) > 0, told


@pytest.mark.parametrize(("count", "many"), SOME)
def test_who_was_overtaken_writes_nothing(count, many):
    """With one lease for all, whoever lost it is told so at its next write."""
    told = rounds(count, many, apart=False)

    assert min(told[what] for what in ("placed", "fenced", "evicted")) > 0, told


def some_begun(seed: int) -> tuple[Store, Plans]:
    """A store in which more is waiting than fits; the same for the same seed."""
    chance, plans = random.Random(seed), {}
    store = begun(some_world(chance), chance, plans)
    for row in store.tasks.values():
        row.state = "pending" if row.state == "to come" else row.state
    return store, plans


def after_steps(steps: Steps, count: int) -> bool:
    """Whether it still runs after so many steps."""
    return all(next(steps, "end") is None for _ in range(count))


@pytest.mark.parametrize("seed", range(12))
def test_a_paused_holder_that_resumes_writes_nothing(seed):
    """Paused after each of its steps in turn; the next one takes the lease over and does the work."""
    for count in range(1, 1_000):
        store, plans = some_begun(seed)
        paused = scheduler(store, "paused", "place", plans, times=1)
        if not after_steps(paused, count):
            assert count > 3
            return
        following = scheduler(store, "next", "place", plans, times=1)
        if after_steps(following, 200):  # the paused one is inside a transaction: its connection is cut
            paused.close()
        to_end(following)
        written = store.key()
        to_end(paused)
        assert store.key() == written
    pytest.fail("it never ends")


@pytest.mark.parametrize("seed", range(12))
def test_death_at_any_step_leaves_nothing_half_done_and_the_next_run_does_the_rest(seed):
    for count in range(1, 1_000):
        store, plans = some_begun(seed)
        dying = scheduler(store, "dying", "place", plans)
        ended = not after_steps(dying, count)
        dying.close()
        assert not store.locks
        whole(store)
        to_end(scheduler(store, "next", "place", plans))
        assert not decide(store.snapshot(), NOW).placements
        if ended:
            return
    pytest.fail("it never ends")
