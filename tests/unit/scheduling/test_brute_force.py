"""Against one that tries everything: how much the quick method loses, and that it keeps the order.

The other placer knows the rules by itself (a dozen lines, none of the scheduler's), keeps every state of the
fleet that can be reached, and follows the same order: what comes first is placed if it can be placed at all.
A second one may leave out who came early for two who came late, as long as no lower priority gains by it.
"""

import random
from itertools import combinations, groupby

import pytest

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.fairness import units_in_order
from tests.examples import examples
from tests.unit.scheduling.worlds import NOW, card, hold, node, task, world

pytestmark = pytest.mark.req("SCHED-02", "SCHED-05", "SCHED-07", "SCHED-10")

CASES = examples(1_000)
A100, T4 = "NVIDIA A100", "Tesla T4"
SIZE_MB = {A100: 80_000, T4: 16_000}

# --- the rules, once more ---------------------------------------------------------------------------

# A state is one tuple a node of one tuple a card: (model, ((tenant, percent, inference), ...)); 0 percent is
# the card alone.


def fits_card(snapshot, item, model, holds):
    """Whether the task may stand on such a card."""
    if item.gpu_type and item.gpu_type not in model:
        return False
    total, inference = SIZE_MB[model], item.task_type == TaskType.INFERENCE
    if item.whole_cards:
        return not holds and -(-(item.memory_mb or 0) // item.gpu_required) <= total - 500 - total // 10
    return (
        all(snapshot.may_share(item.tenant_id, tenant) for tenant, _, _ in holds)
        and all(kind == inference and percent for _, percent, kind in holds)
        and item.percent + sum(percent for _, percent, _ in holds) <= 90
        and (item.memory_mb or 0) <= total * item.percent // 100
    )


def with_card(item, found):
    model, holds = found
    mine = (item.tenant_id, 0 if item.whole_cards else item.percent, item.task_type == TaskType.INFERENCE)
    return (model, tuple(sorted((*holds, mine))))


def as_it_is(found):
    """A card of the snapshot as part of a state."""
    holds = ((one.tenant_id, one.percent or 0, one.inference) for one in found.holds)
    return (found.model, tuple(sorted(holds)))


def sorted_state(nodes):
    """Nodes and cards that are alike are one and the same: a state has its parts in order."""
    return tuple(sorted(tuple(sorted(cards)) for cards in nodes))


def after(snapshot, item, state):
    """Every state that one task may lead to."""
    for place, cards in enumerate(state):
        usable = [index for index, found in enumerate(cards) if fits_card(snapshot, item, *found)]
        for some in combinations(usable, item.gpu_required):
            if len({cards[index][0] for index in some}) == 1:
                new = [
                    with_card(item, found) if index in some else found for index, found in enumerate(cards)
                ]
                yield sorted_state((*state[:place], new, *state[place + 1 :]))


def after_all(snapshot, unit, states):
    """Every state that all tasks of a unit together may lead to."""
    for item in unit:
        states = {new for state in states for new in after(snapshot, item, state)}
    return states


def start(snapshot):
    return sorted_state([as_it_is(one) for one in place.cards] for place in snapshot.nodes)


def in_turn(snapshot):
    """How many tasks are placed where everyone is placed who can be, in order, whatever that takes."""
    states, placed = {start(snapshot)}, 0
    for unit in units_in_order(snapshot.tasks):
        reached = after_all(snapshot, unit, states)
        if reached:
            states, placed = reached, placed + len(unit)
    return placed


def by_priority(snapshot):
    """How many where only the number in each priority counts, the highest first."""
    states, placed = {start(snapshot)}, 0
    for _, level in groupby(units_in_order(snapshot.tasks), key=lambda unit: unit[0].priority):
        counts = dict.fromkeys(states, 0)
        for unit in level:
            for state, count in list(counts.items()):
                for new in after_all(snapshot, unit, {state}):
                    counts[new] = max(counts.get(new, 0), count + len(unit))
        most = max(counts.values())
        states, placed = {state for state, count in counts.items() if count == most}, placed + most
    return placed


# --- the worlds -------------------------------------------------------------------------------------


def some_card(chance, number):
    holds = []
    if chance.random() < 0.3:
        holds = [hold(chance.choice((1, 2)), chance.choice((None, 20, 40)))]
    model = chance.choice((A100, A100, T4))
    return card(number, *holds, model=model, vram_total_mb=SIZE_MB[model])


def some_task(chance, number, **fields):
    kind = chance.random()
    wish = {"gpu_required": 1, "percent": chance.choice((20, 30, 45, 60))}
    if kind < 0.35:
        wish = {"gpu_required": 1, "percent": None}
    elif kind < 0.6:
        wish = {"gpu_required": chance.choice((2, 2, 3)), "percent": None}
    elif kind < 0.7:
        wish = {"gpu_required": chance.choice((1, 2)), "task_type": TaskType.TRAINING}
    values = {
        "tenant_id": chance.choice((1, 1, 2)),
        "priority": chance.randint(0, 2),
        "gpu_type": chance.choice(("", "", "A100", "T4")),
        "memory_mb": chance.choice((None, None, 4_000, 30_000)),
        "engine": "llamacpp",
        **wish,
    }
    return task(number, **{**values, **fields})


def some_world(seed):
    """At most four nodes of four cards and eight tasks; some of those are gangs."""
    chance = random.Random(seed)
    nodes = [
        node(
            number,
            *(some_card(chance, 10 * number + k) for k in range(chance.randint(1, 4))),
            host_ipc=False,
        )
        for number in range(1, chance.randint(1, 4) + 1)
    ]
    tasks, many = [], chance.randint(4, 8)
    while len(tasks) < many:
        size = chance.choice((1, 1, 1, 1, 2, 3))
        first = some_task(chance, len(tasks) + 1)
        if size == 1 or len(tasks) + size > many:
            tasks.append(first)
            continue
        same = {
            name: getattr(first, name)
            for name in ("tenant_id", "priority", "gpu_type", "memory_mb", "gpu_required", "task_type")
        }
        tasks += [
            some_task(
                chance,
                first.id + rank,
                **same,
                percent=None,
                gang=f"g{first.id}",
                gang_size=size,
                rank=rank,
            )
            for rank in range(size)
        ]
    shared = chance.choice(({}, {1: frozenset({2}), 2: frozenset({1})}))
    return world(tasks, nodes, shared=shared)


# --- what must hold ---------------------------------------------------------------------------------


def exact(snapshot, placements):
    """The fleet with these placements, cards by their row ids; each must be within the rules."""
    tasks = {item.id: item for item in snapshot.tasks}
    homes = {one.id: place.id for place in snapshot.nodes for one in place.cards}
    now = {one.id: as_it_is(one) for place in snapshot.nodes for one in place.cards}
    for placed in placements:
        item = tasks[placed.task_id]
        assert len(placed.cards) == item.gpu_required
        assert {homes[one] for one in placed.cards} == {placed.node_id}
        assert len({now[one][0] for one in placed.cards}) == 1
        for one in placed.cards:
            assert fits_card(snapshot, item, *now[one])
            now[one] = with_card(item, now[one])
    return sorted_state([now[one.id] for one in place.cards] for place in snapshot.nodes)


@pytest.fixture(scope="module")
def cases():
    """(snapshot, plan) of every case."""
    found = []
    for seed in range(CASES):
        snapshot = some_world(seed)
        found.append((snapshot, decide(snapshot, NOW)))
    return found


def test_nothing_is_refused_that_fits_beside_those_before_it(cases):
    """So no lower priority ever stands where a higher one would have fitted."""
    refused = 0
    for snapshot, plan in cases:
        placed = {one.task_id: one for one in plan.placements}
        before = []
        for unit in units_in_order(snapshot.tasks):
            mine = [placed[item.id] for item in unit if item.id in placed]
            before += mine
            if mine:
                assert len(mine) == len(unit), "a gang is placed whole"
                continue
            refused += 1
            assert not after_all(snapshot, unit, {exact(snapshot, before)})
        exact(snapshot, plan.placements)
    assert refused > CASES / 4, "the worlds are full enough to refuse"


def test_it_places_nearly_as_many_as_one_that_tries_everything(cases, record_property, capsys):
    ours = [len(plan.placements) for _, plan in cases]
    lines = [f"{CASES} cases, {sum(ours)} tasks placed"]
    for name, placer in (("in the same order", in_turn), ("by the same priorities", by_priority)):
        most = [placer(snapshot) for snapshot, _ in cases]
        lost = sum(max(0, there - here) for there, here in zip(most, ours, strict=True))
        worse = sum(there > here for there, here in zip(most, ours, strict=True))
        lines.append(
            f"  exhaustive {name}: {sum(most)}; {lost} fewer here ({lost / sum(most):.2%}) in {worse} cases"
        )
        assert lost <= 0.05 * sum(most)
    record_property("gap", "\n".join(lines))
    with capsys.disabled():
        print("", *lines, sep="\n")
