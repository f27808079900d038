"""The red line: tenants that share no group never meet, on a card or beside work that has the host's network.

Tenants, groups and work are random, and groups change between decision and commit. The rule stands here once
more, in three lines; the filters and the check at the commit must both keep to it, and to each other.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.workloads.policy.room import Asked, HeldCard, HeldNode, Ledger, Rule, Share
from tests.examples import examples
from tests.unit.scheduling.store import Store, asked_of, open_books
from tests.unit.scheduling.worlds import NOW, card, hold, node, task, world

pytestmark = pytest.mark.req("SCHED-09", "SHARE-05")

TENANTS = (1, 2, 3, 4)


def groups_of(pairs):
    """Who shares with whom, of pairs of tenants."""
    return {
        one: frozenset(b if a == one else a for a, b in pairs if one in (a, b) and a != b) for one in TENANTS
    }


PAIRS = st.sets(st.tuples(st.sampled_from(TENANTS), st.sampled_from(TENANTS)), max_size=3).map(groups_of)


def apart(groups, one, other):
    """Strangers: not one tenant, and no group in common."""
    return one != other and other not in groups.get(one, ())


def is_wide(item, place):
    """Whether a task has the host's network or IPC on a node."""
    several = item.gpu_required > 1 and item.task_type == TaskType.INFERENCE
    return item.host_network or (several and place.host_ipc is not False)


@st.composite
def wishes(draw, number):
    return task(
        number,
        tenant_id=draw(st.sampled_from(TENANTS)),
        priority=draw(st.integers(0, 2)),
        gpu_required=draw(st.sampled_from([0, 1, 1, 1, 2])),
        percent=draw(st.sampled_from([None, 20, 30])),
        task_type=draw(st.sampled_from([TaskType.INFERENCE, TaskType.INFERENCE, TaskType.TRAINING])),
        host_network=draw(st.sampled_from([False, False, True])),
        engine="llamacpp",
        may_borrow=True,
    )


@st.composite
def fleets(draw):
    """Nodes where tenants live already, whoever they share with by now; some asleep, some lent out."""
    nodes = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        cards, tenants = [], set()
        for k in range(draw(st.integers(1, 4))):
            holds = [
                hold(
                    draw(st.sampled_from(TENANTS)),
                    20,
                    task_id=1_000 * number + 10 * k + n,
                    sleeping=(asleep := draw(st.booleans())),
                    lendable=asleep,
                    preemptible=draw(st.booleans()),
                    since=NOW,
                )
                for n in range(draw(st.sampled_from([0, 0, 1, 2])))
            ]
            tenants |= {one.tenant_id for one in holds}
            cards.append(card(10 * number + k, *holds))
        if draw(st.booleans()):
            tenants.add(draw(st.sampled_from(TENANTS)))  # work without a card
        wide = draw(st.sets(st.sampled_from(sorted(tenants)), max_size=1)) if tenants else set()
        nodes.append(
            node(
                number,
                *cards,
                host_ipc=draw(st.sampled_from([None, True, False])),
                tenants=frozenset(tenants),
                host_wide=frozenset(wide),
            )
        )
    return nodes


@given(fleets(), st.integers(1, 6), PAIRS, st.data())
@settings(max_examples=examples(300))
def test_no_decision_lets_strangers_meet(nodes, many, groups, data):
    tasks = {number: data.draw(wishes(number)) for number in range(1, many + 1)}
    plan = decide(world(list(tasks.values()), nodes, shared=groups), NOW)
    on = {one.id: {held.tenant_id for held in one.holds} for place in nodes for one in place.cards}
    living = {place.id: set(place.tenants) for place in nodes}
    wide = {place.id: set(place.host_wide) for place in nodes}
    by_id = {place.id: place for place in nodes}

    for placed in plan.placements:
        item, place = tasks[placed.task_id], by_id[placed.node_id]
        met = set().union(wide[place.id], *(on[number] for number in placed.cards))
        if is_wide(item, place):
            met |= living[place.id]
            wide[place.id].add(item.tenant_id)
        assert not [other for other in met if apart(groups, item.tenant_id, other)]
        living[place.id].add(item.tenant_id)
        for number in placed.cards:
            on[number].add(item.tenant_id)


@st.composite
def asks(draw):
    """Anything that a scheduler with stale knowledge could ask for."""
    return Asked(
        draw(st.integers(1, 9)),
        draw(st.sampled_from(TENANTS)),
        1,
        tuple(draw(st.sets(st.sampled_from([1, 2]), max_size=2))),
        draw(st.sampled_from([None, 10])),
        inference=draw(st.booleans()),
        host_network=draw(st.booleans()),
        borrowed=draw(st.booleans()),
    )


@given(
    st.lists(st.tuples(asks(), PAIRS), max_size=8),
    st.sampled_from([None, True, False]),
    st.sampled_from(TENANTS),
)
@settings(max_examples=examples(300))
def test_no_commit_lets_strangers_meet_whatever_is_asked(steps, host_ipc, first):
    """Each is asked under the groups of its moment; who met before the groups changed stays."""
    sleeper = Share(100, first, 20, lendable=True)
    nodes = {1: HeldNode(host_ipc=host_ipc, tenants=frozenset({first}))}
    cards = {1: HeldCard(1, shares=[sleeper]), 2: HeldCard(1)}
    ledger = Ledger(nodes, cards, may_share=lambda one, other: not apart(now[0], one, other))
    on, living, wide = {1: {first}, 2: set()}, {first}, set()
    now = [{}]
    for asked, groups in steps:
        now[0] = groups
        several = asked.inference and len(asked.cards) > 1
        spreads = asked.host_network or (several and host_ipc is not False)
        met = set().union(wide, living if spreads else (), *(on[number] for number in asked.cards))
        strangers = [other for other in met if apart(groups, asked.tenant_id, other)]
        rule = ledger.book([asked])
        assert not (strangers and rule is None)
        assert rule != Rule.RED_LINE or strangers
        if rule is None:
            living.add(asked.tenant_id)
            wide |= {asked.tenant_id} if spreads else set()
            for number in asked.cards:
                on[number].add(asked.tenant_id)


def test_who_is_in_no_group_shares_with_nobody():
    nodes = [node(1, card(1, hold(2, 20)), tenants=frozenset({2}))]

    assert not decide(world([task(1, percent=20)], nodes, shared={}), NOW).placements
    ledger = Ledger(
        {1: HeldNode(tenants=frozenset({2}))},
        {1: HeldCard(1, shares=[Share(9, 2, 20)])},
        may_share=lambda one, other: False,
    )
    assert ledger.book([Asked(1, 1, 1, (1,), 20)]) == Rule.RED_LINE


@pytest.mark.parametrize("seed", range(60))
def test_what_is_decided_is_what_the_commit_takes(seed):
    """On the same knowledge both say the same, so that no task waits for a place that it can't have."""
    chance = random.Random(seed)
    nodes = [
        node(
            number,
            *(card(10 * number + k) for k in range(chance.randint(1, 3))),
            host_ipc=chance.choice((None, True, False)),
            inference_cap=chance.choice((None, 2)),
        )
        for number in (1, 2)
    ]
    tasks = [
        task(
            number,
            tenant_id=chance.choice(TENANTS),
            gpu_required=chance.choice((1, 1, 2)),
            percent=chance.choice((None, 20, 45)),
            task_type=chance.choice((TaskType.INFERENCE, TaskType.INFERENCE, TaskType.TRAINING)),
            host_network=chance.random() < 0.2,
            ports=(ports := chance.choice(((), ((8000, 0),)))),
            counted=bool(ports),
            engine="llamacpp",
        )
        for number in range(1, 9)
    ]
    pairs = [(chance.choice(TENANTS), chance.choice(TENANTS)) for _ in range(3)]
    store = Store(world(tasks, nodes, shared=groups_of(pairs)))
    plan, ledger = decide(store.snapshot(), NOW), open_books(store)

    assert plan.placements
    for placed in plan.placements:
        assert ledger.book([asked_of(store, placed)]) is None
