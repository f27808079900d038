"""Schedulers over a simulated store: what they write in which steps, what else moves, what must always hold.

The decision and the check at the commit are the real ones (`policy.decide`, `workloads.policy.room`); only
the rows are simulated.
"""

import random
from collections import Counter
from collections.abc import Generator
from typing import Any

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Placed, Plan, Preemption
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
from tests.unit.scheduling.worlds import NOW

Plans = dict[Any, Plan]

GROUPS = [{}, {1: frozenset({2}), 2: frozenset({1})}]

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
