"""Memory and ports: what counts as free, and how a near miss is told."""

import pytest

from agent.contract.codes import Code, reason
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.explain import judge_nodes
from tests.unit.scheduling.worlds import NOW, card, codes, hold, node, one, places, task, world

# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize(("estimate", "taken"), [(21_100, True), (21_101, False)])
def test_free_is_total_less_used_less_both_reserves(estimate, taken):
    """24,000 - 0 used - 500 - 2,400 = 21,100 MB."""
    plan = one(task(1, memory_mb=estimate), node(1, card(1)))

    assert (1 in places(plan)) == taken
    if not taken:
        assert plan.refusals[1][1] == reason(
            Code.VRAM_SHORT,
            nodes=1,
            wanted_mb=21_101,
            free_mb=21_100,
            short_mb=1,
            node="n001",
            card=1,
        )


@pytest.mark.req("SCHED-04")
def test_memory_of_strangers_counts():
    """80 GiB, 70 used by something unknown, 40 wanted."""
    crowded = node(1, card(1, vram_total_mb=81_920, used_mb=71_680))

    assert Code.VRAM_SHORT in codes(one(task(1, memory_mb=40_960), crowded))
    assert Code.VRAM_SHORT in codes(one(task(1, percent=50), crowded))


@pytest.mark.req("SCHED-04")
def test_the_growth_of_our_own_engine_is_not_counted_twice():
    """40 % are promised and 30 % of them in use by now: 50 % still fit."""
    growing = card(1, hold(percent=40), used_mb=7_200)

    assert 1 in places(one(task(1, percent=50), node(1, growing)))


@pytest.mark.req("SCHED-04")
def test_use_beyond_the_promise_counts_too():
    greedy = card(1, hold(percent=40), used_mb=14_400)  # 60 %

    assert 1 in places(one(task(1, percent=40, engine="llamacpp"), node(1, greedy)))
    assert Code.VRAM_SHORT in codes(one(task(1, percent=41), node(1, greedy)))


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize(
    "fields", [{"used_mb": None}, {"vram_total_mb": None}, {"used_mb": None, "vram_total_mb": None}]
)
@pytest.mark.parametrize("asked", [{}, {"memory_mb": 1}, {"percent": 10}])
def test_unknown_memory_is_never_taken_for_free(fields, asked):
    plan = one(task(1, **asked), node(1, card(1, **fields)))

    assert codes(plan) == [Code.INSUFFICIENT_RESOURCES, Code.VRAM_UNKNOWN]


def test_an_estimate_above_its_own_promise_is_refused_with_the_promise():
    plan = one(task(1, percent=10, memory_mb=5_000), node(1, card(1)))

    assert plan.refusals[1][1] == reason(
        Code.VRAM_SHORT, nodes=1, wanted_mb=5_000, free_mb=2_400, short_mb=2_600, node="n001", card=1
    )


def test_an_estimate_is_split_over_the_cards():
    pair = node(1, card(1), card(2))

    assert 1 in places(one(task(1, gpu_required=2, memory_mb=42_200), pair))
    assert 1 not in places(one(task(1, gpu_required=2, memory_mb=42_202), pair))


@pytest.mark.req("SCHED-10")
def test_the_nearest_miss_of_many_nodes_is_told():
    nodes = [node(n, card(n, used_mb=used)) for n, used in ((1, 20_000), (2, 5_000), (3, 9_000))]
    plan = decide(world([task(1, memory_mb=20_000)], nodes), NOW)

    assert plan.refusals[1] == [
        reason(Code.INSUFFICIENT_RESOURCES, nodes=3),
        reason(
            Code.VRAM_SHORT,
            nodes=3,
            wanted_mb=20_000,
            free_mb=16_100,
            short_mb=3_900,
            node="n002",
            card=2,
        ),
    ]


@pytest.mark.req("SCHED-10")
def test_each_node_counts_under_its_first_refusal_and_the_most_frequent_stands_first():
    nodes = [
        node(1, card(1), online=False),
        node(2, card(2, hold())),
        node(3, card(3, hold())),
        node(4, card(4), cordoned=True),
    ]
    plan = decide(world([task(1)], nodes), NOW)

    assert plan.refusals[1] == [
        reason(Code.INSUFFICIENT_RESOURCES, nodes=4),
        reason(Code.CARDS_SHORT, nodes=2, wanted=1, free=0),
        reason(Code.NODE_CORDONED, nodes=1),
        reason(Code.NODE_OFFLINE, nodes=1),
    ]


# --- ports ----------------------------------------------------------------------------------------


@pytest.mark.req("SVC-04")
def test_ports_come_from_the_range_and_never_twice():
    small = node(1, port_first=100, port_last=103, ports=frozenset({101}))
    cpu = {"gpu_required": 0, "engine": "llamacpp"}
    snapshot = world(
        [task(1, ports=((8000, 0), (9000, 0)), **cpu), task(2, ports=((8000, 0),), **cpu), task(3, **cpu)],
        [small],
    )
    plan = decide(snapshot, NOW)

    given = [host for placed in plan.placements for _, host in placed.host_ports]
    assert sorted(given) == [100, 102, 103]
    assert [container for container, _ in plan.placements[0].host_ports] == [8000, 9000]
    assert {placed.task_id for placed in plan.placements} == {1, 2, 3}


def test_an_exhausted_range_is_said():
    full = node(1, port_first=100, port_last=101, ports=frozenset({101}))
    plan = one(task(1, gpu_required=0, engine="llamacpp", ports=((1, 0), (2, 0))), full)

    assert codes(plan) == [Code.INSUFFICIENT_RESOURCES, Code.PORTS_EXHAUSTED]


def test_a_named_port_is_taken_by_one_task_only():
    cpu = {"gpu_required": 0, "engine": "llamacpp", "ports": ((8000, 9000),)}
    plan = decide(world([task(1, **cpu), task(2, **cpu)], [node(1)]), NOW)

    assert plan.placements[0].host_ports == ((8000, 9000),)
    assert plan.refusals[2][1] == reason(Code.PORT_TAKEN, nodes=1, port=9000)


def test_a_named_port_inside_the_range_is_not_given_to_others():
    ports = ((8000, 100), (8001, 0))
    plan = one(
        task(1, gpu_required=0, engine="llamacpp", ports=ports), node(1, port_first=100, port_last=101)
    )

    assert plan.placements[0].host_ports == ((8000, 100), (8001, 101))


def test_another_attempt_begins_at_another_port():
    asked = {"gpu_required": 0, "engine": "llamacpp", "ports": ((8000, 0),)}
    given = {one(task(1, attempt=attempt, **asked), node(1)).placements[0].host_ports for attempt in range(5)}

    assert len(given) == 5


@pytest.mark.req("SVC-14", "SCHED-11")
def test_of_two_alike_each_is_told_of_the_room_that_is_kept_for_it_alone():
    """Asked about both at once, a node says to either what the decision would."""
    mine, other = task(1), task(2)
    kept = node(1, card(1, hold(reserved_for=mine.id)))
    told = judge_nodes(world([mine, other], [kept]), [mine, other])

    assert told[mine.id][0].refused is None
    assert told[other.id][0].refused is not None
