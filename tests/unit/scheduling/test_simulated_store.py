"""Several schedulers at once on stale knowledge, dying at any step: nothing is given twice.

The decision and the check at the commit are the real ones; only the rows are simulated, so that ten thousand
rounds of random interleavings cost a minute. `test_place_together` shows the same on the real database.
"""

import random
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Placed, Plan, Preemption
from apps.scheduling.policy.snapshot import Snapshot
from tests.unit.scheduling.store import (
    Claim,
    Clash,
    Lease,
    LeaseLost,
    Row,
    Steps,
    Store,
    Transaction,
    asked_of,
    claim_of,
    open_books,
)
from tests.unit.scheduling.worlds import NOW, card, node, task, world

pytestmark = pytest.mark.req("SCHED-12", "SCHED-01")

Plans = dict[Any, Plan]

WORLDS = 40
# Ten thousand rounds of each kind in the long run, a sample of them with every change.
SOME = [(400, many) for many in (2, 4, 8)]
SOME += [pytest.param(3_334, many, marks=pytest.mark.slow) for many in (2, 4, 8)]


# --- what a scheduler writes ------------------------------------------------------------------------


def commit_placements(store: Store, lease: Lease, placements: list[Placed]) -> Steps:
    """One slice, as services.placing commits it: what does not fit any more is left out, gangs as a whole."""
    cards = {number for one in placements for number in one.cards}
    with Transaction(store) as rows:
        yield from rows.holding(lease)
        yield from rows.lock("node", (one.node_id for one in placements))
        yield from rows.lock("card", cards)
        lenders = [one.task_id for number in cards for one in store.live(number)]
        yield from rows.lock("task", (*lenders, *(one.task_id for one in placements)))
        ledger, groups = open_books(store), store.shared
        yield
        taken: list[Claim] = []
        for unit in together(placements):
            fresh = all(store.tasks[one.task_id].version == one.version for one in unit)
            waits = all(store.tasks[one.task_id].state == "pending" for one in unit)
            if fresh and waits and ledger.book([asked_of(store, one) for one in unit]) is None:
                taken += [claim_of(store, one, groups) for one in unit]
            else:
                store.told["left out"] += 1
        yield
        ports = [(one.node_id, port) for one in taken for port in one.ports]
        yield from rows.lock("port", ports)
        held = {(one.node_id, port) for one in store.live() for port in one.ports}
        if held & set(ports) or len(set(ports)) < len(ports):
            raise Clash
        yield
        for claim in taken:
            rows.write(lambda claim=claim: place(store, claim))
        rows.commit()
        whole(store)


def place(store: Store, claim: Claim) -> None:
    row = store.tasks[claim.task_id]
    for other in store.live():
        if other.node_id == claim.node_id:
            apart = not set(other.cards) & set(claim.cards)
            wide = any(store.is_wide(one.task_id, one.node_id) for one in (claim, other))
            mine, theirs = row.view.tenant_id, store.tasks[other.task_id].view.tenant_id
            assert (apart and not wide) or shares(claim.groups, mine, theirs), "strangers together"
    row.state, row.version = "placed", row.version + 1
    store.kept.pop(claim.task_id, None)
    for one in store.live() if claim.borrowed else ():
        for number in set(one.cards) & set(claim.cards):
            store.loans[number, one.task_id] = claim.task_id
    store.claims.append(claim)


def commit_preemptions(store: Store, lease: Lease, made: list[Preemption]) -> Steps:
    """Victims go back to waiting and the room is kept, those of a gang together, as services.preempting
    commits them: nobody goes unless what is left then suffices."""
    victims = {number for one in made for number in one.victims}
    with Transaction(store) as rows:
        yield from rows.holding(lease)
        yield from rows.lock("node", (one.node_id for one in made))
        yield from rows.lock("card", (number for one in made for number in one.cards))
        yield from rows.lock("task", (*victims, *(one.task_id for one in made)))
        for one in made:
            row = store.tasks[one.task_id]
            if row.version != one.version or row.state != "pending" or one.task_id in store.kept:
                raise Clash
            if not all(may_go(store.tasks[number], row.view.priority) for number in one.victims):
                raise Clash
        yield
        if open_books(store, victims).book([asked_of(store, one) for one in made]) is not None:
            raise Clash
        yield
        for number in victims:
            rows.write(lambda number=number: evict(store, number))
        for one in made:
            rows.write(lambda one=one: store.kept.update({one.task_id: one}))
        rows.commit()
        whole(store)


def may_go(row: Row, priority: int) -> bool:
    return row.state == "placed" and row.view.preemptible and not row.evicted and row.view.priority < priority


def evict(store: Store, number: int) -> None:
    row = store.tasks[number]
    row.state, row.version, row.evicted = "evicted", row.version + 1, row.evicted + 1


# --- who runs ---------------------------------------------------------------------------------------


def scheduler(store: Store, name: str, lease_name: str, plans: Plans, times: int = 2) -> Steps:
    """Runs of the loop: lease, snapshot, decision, slices; a slice that clashes again item by item."""
    for _ in range(times):
        lease = yield from take_lease(store, lease_name, name)
        plan = plan_for(store, plans)
        yield
        try:
            for made in together(plan.preemptions):
                yield from noting_clash(store, commit_preemptions(store, lease, made))
            units = together(plan.placements)
            for start in range(0, len(units), 2):
                portion = units[start : start + 2]
                try:
                    yield from commit_placements(store, lease, [one for unit in portion for one in unit])
                except Clash:
                    for unit in portion:
                        yield from noting_clash(store, commit_placements(store, lease, unit))
        except LeaseLost:
            store.told["fenced"] += 1


def take_lease(store: Store, name: str, holder: str) -> Generator[None, None, Lease]:
    """Take it over from whoever had it: its time is up. While that one writes, this waits."""
    with Transaction(store) as rows:
        yield from rows.lock("lease", [name])
        fence = store.leases.get(name, ("", 0))[1] + 1
        rows.write(lambda: store.leases.update({name: (holder, fence)}))
        rows.commit()
    yield
    return Lease(name, holder, fence)


def noting_clash(store: Store, steps: Steps) -> Steps:
    try:
        yield from steps
    except Clash:
        store.told["clashed"] += 1


def together(items: list) -> list[list]:
    """Those of one gang in one list, everyone else alone."""
    found: dict[object, list] = {}
    for one in items:
        found.setdefault(one.gang or one.task_id, []).append(one)
    return list(found.values())


def plan_for(store: Store, plans: Plans) -> Plan:
    """The decision for what is committed now; equal snapshots give equal plans, so it is made once."""
    key = store.key()
    if key not in plans:
        plans[key] = decide(store.snapshot(), NOW)
    return plans[key]


def outside(store: Store, chance: random.Random) -> Steps:
    """Everything else that moves: agents that confirm, tasks that end, sleep, wake, groups that change."""
    while True:
        yield
        act = chance.randrange(6)
        claims = store.live()
        to_come = [row for row in store.tasks.values() if row.state == "to come"]
        if act == 0:
            store.pasts.append(chance.choice(GROUPS))
        elif act < 3 and to_come:
            gang = to_come[0].view.gang or object()
            for row in [row for row in to_come if row is to_come[0] or row.view.gang == gang]:
                row.state = "pending"
        elif claims:
            claim = chance.choice(claims)
            row = store.tasks[claim.task_id]
            if ("task", row.view.id) in store.locks:
                continue  # it waits for the row, as the database makes it
            row.version += 1
            if row.state == "evicted" or act == 1:
                release(store, claim)
            elif act == 2 and row.view.task_type == TaskType.INFERENCE:
                row.sleeping, row.lends = True, chance.random() < 0.8
            elif act == 3 and all(lender != row.view.id for _, lender in store.loans):
                row.sleeping = False


def release(store: Store, claim: Claim) -> None:
    row = store.tasks[claim.task_id]
    claim.live = False
    row.state = "pending" if row.state == "evicted" else "ended"
    row.sleeping = False
    for key in [key for key, borrower in store.loans.items() if claim.task_id in (key[1], borrower)]:
        del store.loans[key]


# --- what must hold at every moment -----------------------------------------------------------------


def whole(store: Store) -> None:
    """Everything that is committed, by rules of its own."""
    live = store.live()
    assert all(many == 1 for many in Counter(one.task_id for one in live).values()), "a task placed twice"
    held = Counter((one.node_id, port) for one in live for port in one.ports)
    assert all(many == 1 for many in held.values()), "a port given twice"
    for number in store.views:
        here = [one for one in live if number in one.cards]
        awake = [one for one in here if not store.tasks[one.task_id].sleeping or one.borrowed]
        lent = [one for one in here if one.borrowed]
        assert sum(100 if one.percent is None else one.percent for one in here if not one.borrowed) <= 100
        assert len(lent) <= 1, "a card lent twice"
        assert not lent or awake == lent, "a borrower beside somebody who is awake"
        kinds = {store.tasks[one.task_id].view.task_type for one in here if not one.borrowed}
        assert len(kinds) <= 1, "training beside inference"
    for place_ in store.base.nodes:
        inference = [one for one in live if one.node_id == place_.id and store.is_inference(one.task_id)]
        assert place_.inference_cap is None or len(inference) <= place_.inference_cap
    for row in store.tasks.values():
        assert (row.state in ("placed", "evicted")) == any(one.task_id == row.view.id for one in live)
    for name in {row.view.gang for row in store.tasks.values()} - {""}:
        begun = [row.version > 0 for row in store.tasks.values() if row.view.gang == name]
        assert all(begun) or not any(begun), "half a gang"


def shares(groups: dict[int, frozenset[int]], one: int, other: int) -> bool:
    return one == other or other in groups.get(one, ())


# --- rounds -----------------------------------------------------------------------------------------

GROUPS = [{}, {1: frozenset({2}), 2: frozenset({1})}]


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
