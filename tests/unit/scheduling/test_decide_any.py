"""What holds for every plan, whatever the world looks like."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.codes import Code
from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.fairness import in_order
from apps.scheduling.policy.filters.gpu_type import words
from apps.scheduling.policy.shapes import shape_of
from apps.scheduling.policy.snapshot import Snapshot
from tests.examples import examples
from tests.unit.scheduling.worlds import NOW, card, hold, node, task

pytestmark = pytest.mark.req("SCHED-14")

TENANTS = st.integers(1, 3)
MODELS = st.sampled_from(["RTX 4090", "A100", "H100"])
PERCENTS = st.sampled_from([None, 10, 30, 45, 90])


@st.composite
def cards(draw, number):
    shares = draw(st.lists(st.tuples(TENANTS, st.sampled_from([10, 20, 30])), max_size=2))
    holds = [hold(tenant, percent) for tenant, percent in shares]
    if not holds and draw(st.booleans()):
        holds = [hold(draw(TENANTS), None, inference=draw(st.booleans()))]
    return card(
        number,
        *holds,
        model=draw(MODELS),
        vram_total_mb=draw(st.sampled_from([8_000, 24_000, 80_000, None])),
        used_mb=draw(st.sampled_from([0, 500, 7_000, None])),
    )


@st.composite
def worlds(draw) -> Snapshot:
    nodes = []
    for number in range(1, draw(st.integers(0, 4)) + 1):
        open_to = draw(st.none() | st.frozensets(TENANTS, max_size=2))
        nodes.append(
            node(
                number,
                *(draw(cards(number * 10 + k)) for k in range(draw(st.integers(0, 3)))),
                online=draw(st.sampled_from([True, True, True, False])),
                cordoned=draw(st.sampled_from([False, False, True])),
                open_to=open_to,
                port_first=100,
                port_last=draw(st.sampled_from([100, 103, 110])),
            )
        )
    tasks = [
        task(
            number,
            tenant_id=draw(TENANTS),
            group_id=draw(st.integers(1, 3)),
            priority=draw(st.integers(0, 2)),
            task_type=draw(st.sampled_from([TaskType.INFERENCE, TaskType.INFERENCE, TaskType.TRAINING])),
            gpu_required=draw(st.integers(0, 3)),
            gpu_type=draw(st.sampled_from(["", "", "A100"])),
            memory_mb=draw(st.sampled_from([None, 4_000, 20_000])),
            percent=draw(PERCENTS),
            engine="llamacpp",
            ports=draw(st.sampled_from([(), ((8000, 0),), ((8000, 102),), ((8000, 0), (8001, 0))])),
        )
        for number in range(1, draw(st.integers(0, 12)) + 1)
    ]
    pairs = draw(st.sampled_from([{}, {1: frozenset({2}), 2: frozenset({1})}]))
    return Snapshot(tasks=tuple(tasks), nodes=tuple(nodes), shared=pairs, weights={"spread": 2.0})


@given(worlds())
def test_equal_snapshots_give_equal_plans_whatever_the_order_of_rows(snapshot):
    turned = Snapshot(
        tasks=snapshot.tasks[::-1],
        nodes=snapshot.nodes[::-1],
        shared=snapshot.shared,
        weights=snapshot.weights,
    )

    assert decide(snapshot, NOW) == decide(snapshot, NOW) == decide(turned, NOW)


@given(worlds())
def test_every_task_is_placed_once_or_refused_with_reasons(snapshot):
    plan = decide(snapshot, NOW)
    placed = [item.task_id for item in plan.placements]

    assert not plan.broken
    assert sorted([*placed, *plan.refusals]) == sorted(item.id for item in snapshot.tasks)
    for reasons in plan.refusals.values():
        assert reasons[0].code in (Code.INSUFFICIENT_RESOURCES, Code.NO_NODE)
        assert reasons[0].code == Code.NO_NODE or reasons[0].params["nodes"] == sum(
            why.params["nodes"] for why in reasons[1:] if why.code != Code.GPU_TYPE_OFFLINE
        )


@given(worlds())
def test_placements_stand_on_open_living_nodes_with_the_cards_that_were_asked_for(snapshot):
    nodes = {item.id: item for item in snapshot.nodes}
    tasks = {item.id: item for item in snapshot.tasks}
    for placed in decide(snapshot, NOW).placements:
        where, what = nodes[placed.node_id], tasks[placed.task_id]
        own = {item.id: item for item in where.cards}
        assert where.online
        assert not where.cordoned
        assert where.open_to is None or what.tenant_id in where.open_to
        assert len(set(placed.cards)) == len(placed.cards) == what.gpu_required
        assert set(placed.cards) <= own.keys()
        assert not what.gpu_type or all(words(own[one].model) == ("a100",) for one in placed.cards)
        assert len({own[one].model for one in placed.cards}) <= 1
        assert [container for container, _ in placed.host_ports] == [container for container, _ in what.ports]


@given(worlds())
def test_no_card_and_no_port_is_ever_given_beyond_what_there_is(snapshot):
    tasks = {item.id: item for item in snapshot.tasks}
    every = {item.id: item for place in snapshot.nodes for item in place.cards}
    holds = defaultdict(list, {number: list(item.holds) for number, item in every.items()})
    ports = {place.id: set(place.ports) for place in snapshot.nodes}
    for placed in decide(snapshot, NOW).placements:
        what = tasks[placed.task_id]
        inference = what.task_type == TaskType.INFERENCE
        for number in placed.cards:
            for other in holds[number]:
                assert placed.percent is not None
                assert other.percent is not None
                assert other.inference == inference
                assert snapshot.may_share(what.tenant_id, other.tenant_id)
            holds[number].append(hold(what.tenant_id, placed.percent, inference=inference))
            total, used = every[number].vram_total_mb, every[number].used_mb
            assert total is not None
            assert used is not None
            if placed.percent is not None:
                promised = sum(item.percent for item in holds[number])
                assert promised <= 90
                assert total * placed.percent // 100 <= total - used
            if what.memory_mb is not None:
                assert what.memory_mb <= what.gpu_required * (total - used)
        for _, host in placed.host_ports:
            assert host not in ports[placed.node_id]
            ports[placed.node_id].add(host)


@given(worlds())
@pytest.mark.req("SCHED-02")
def test_no_task_is_placed_behind_a_refused_one_of_its_shape(snapshot):
    plan = decide(snapshot, NOW)
    refused = set()
    for item in in_order(snapshot.tasks):
        if item.id in plan.refusals:
            refused.add(shape_of(item))
        else:
            assert shape_of(item) not in refused


@given(worlds())
@settings(max_examples=examples(50))
@pytest.mark.req("SCHED-10")
def test_what_is_refused_fits_nowhere_after_the_plan(snapshot):
    """Deciding once more on what the plan left places nothing: nothing was overlooked."""
    plan = decide(snapshot, NOW)
    tasks = {item.id: item for item in snapshot.tasks}
    taken = defaultdict(list)
    ports = {place.id: set(place.ports) for place in snapshot.nodes}
    for placed in plan.placements:
        what = tasks[placed.task_id]
        for number in placed.cards:
            taken[number].append(
                hold(what.tenant_id, placed.percent, inference=what.task_type == TaskType.INFERENCE)
            )
        ports[placed.node_id].update(host for _, host in placed.host_ports)
    left = tuple(
        node(
            place.id,
            *(
                card(
                    item.id,
                    *item.holds,
                    *taken[item.id],
                    model=item.model,
                    vram_total_mb=item.vram_total_mb,
                    used_mb=item.used_mb,
                )
                for item in place.cards
            ),
            online=place.online,
            cordoned=place.cordoned,
            open_to=place.open_to,
            port_first=place.port_first,
            port_last=place.port_last,
            ports=frozenset(ports[place.id]),
        )
        for place in snapshot.nodes
    )
    again = Snapshot(
        tasks=tuple(tasks[number] for number in plan.refusals), nodes=left, shared=snapshot.shared
    )

    assert not decide(again, NOW).placements
