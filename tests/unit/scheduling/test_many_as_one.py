"""Many nodes asked at once answer as each of them does alone, also after bookings and their undoing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.misses import find_misses
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import NodeView, Reserve, TaskView
from tests.unit.scheduling.worlds import card, hold, node, task, world

pytestmark = pytest.mark.req("SCHED-03", "SCHED-14")

TENANTS = st.integers(1, 3)
PERCENTS = st.sampled_from([None, 10, 30, 45, 60, 90])
LOADS = st.sampled_from([10.0, 10.0, 90.0, 95.0, None])
FRIENDS = [{}, {1: frozenset({2}), 2: frozenset({1})}]


@st.composite
def cards(draw, number):
    holds = []
    for _ in range(draw(st.integers(0, 2))):
        holds.append(
            hold(
                draw(TENANTS),
                draw(st.sampled_from([10, 30, 60, None])),
                inference=draw(st.sampled_from([True, True, False])),
                task_id=draw(st.integers(50, 60)),
                priority=draw(st.integers(0, 1)),
                preemptible=draw(st.booleans()),
                borrowed=draw(st.sampled_from([False, False, True])),
                measured_mb=draw(st.sampled_from([None, 500, 9_000])),
                reserved_for=draw(st.sampled_from([0, 0, 0, 1])),
            )
        )
    foreign = draw(st.sampled_from([None, 0, 4_000]))
    return card(
        number,
        *holds,
        model=draw(st.sampled_from(["RTX 4090", "A100", "H100"])),
        vendor=draw(st.sampled_from(["nvidia", "nvidia", "ascend"])),
        vram_total_mb=draw(st.sampled_from([8_000, 24_000, 80_000, None])),
        used_mb=draw(st.sampled_from([0, 5_000, 23_000, None])),
        foreign_mb=foreign,
        compute_capability=draw(st.sampled_from([None, "7.0", "8.6"])),
        quarantined=draw(st.sampled_from([False, False, False, True])),
        link_group=draw(st.sampled_from([None, 0, 1])),
        pcie_root=draw(st.sampled_from(["", "a", "b"])),
    )


@st.composite
def nodes(draw, number) -> NodeView:
    return node(
        number,
        *(draw(cards(number * 10 + slot)) for slot in range(draw(st.integers(0, 4)))),
        online=draw(st.sampled_from([True, True, True, False])),
        cordoned=draw(st.sampled_from([False, False, False, True])),
        reachable=draw(st.sampled_from([True, True, False])),
        runtime=draw(st.sampled_from([RuntimeKind.DOCKER, RuntimeKind.DOCKER, RuntimeKind.PROCESS, None])),
        engines=frozenset({"llamacpp"}),
        open_to=draw(st.none() | st.frozensets(TENANTS, max_size=2)),
        port_first=100,
        port_last=draw(st.sampled_from([99, 100, 102])),
        ports=draw(st.frozensets(st.integers(100, 102), max_size=2)),
        siblings=draw(st.sampled_from([{}, {7: 1}])),
        cpu_percent=draw(LOADS),
        memory_percent=draw(LOADS),
        volume_prefixes=draw(st.sampled_from([None, ("/data",), ("/models", "/data")])),
        inference_cap=draw(st.sampled_from([None, 1, 2])),
        inference_count=draw(st.integers(0, 2)),
        models=draw(st.frozensets(st.sampled_from(["/models/a", "/models/b"]))),
        images=draw(st.frozensets(st.just("vllm:1"))),
        tenants=draw(st.frozensets(TENANTS, max_size=2)),
        host_wide=draw(st.sampled_from([frozenset(), frozenset(), frozenset({2})])),
        host_ipc=draw(st.sampled_from([False, True, None])),
    )


@st.composite
def tasks(draw, number) -> TaskView:
    return task(
        number,
        tenant_id=draw(TENANTS),
        group_id=7,
        task_type=draw(st.sampled_from([TaskType.INFERENCE, TaskType.INFERENCE, TaskType.TRAINING])),
        gpu_required=draw(st.sampled_from([0, 1, 1, 2, 3])),
        gpu_type=draw(st.sampled_from(["", "", "A100"])),
        memory_mb=draw(st.sampled_from([None, 4_000, 20_000])),
        percent=draw(PERCENTS),
        engine=draw(st.sampled_from(["vllm", "llamacpp", ""])),
        has_command=draw(st.sampled_from([False, False, True])),
        ports=draw(st.sampled_from([(), ((8000, 0),), ((8000, 101),), ((8000, 0), (8001, 101))])),
        refused_by=draw(st.sampled_from([frozenset(), frozenset({"node-2"})])),
        image=draw(st.sampled_from(["", "vllm:1"])),
        model_path=draw(st.sampled_from(["", "/models/a", "/models/b", "name"])),
        volumes=draw(st.sampled_from([(), ("/data/x:/x",)])),
        counted=draw(st.booleans()),
        host_network=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def fleets(draw):
    fleet = [draw(nodes(number)) for number in range(1, draw(st.integers(1, 5)) + 1)]
    waiting = [draw(tasks(number)) for number in range(1, draw(st.integers(1, 6)) + 1)]
    shared = draw(st.sampled_from(FRIENDS))
    reserve = draw(st.sampled_from([Reserve(), Reserve(0, 0.0)]))
    return world(waiting, fleet, shared=shared, reserve=reserve, weights={"model": 2.0})


def ask_all(board: Board, one: TaskView) -> None:
    """The answers of all nodes at once against those of each alone."""
    alone = [board.judge(one, place) for place in range(len(board.nodes))]
    taking = [place for place, found in enumerate(alone) if not isinstance(found, Refused)]

    assert board.places(one) == taking
    assert sorted(board.ranked(one)) == taking
    question = board.question(one)
    for worth, place, version, slots in board.entries(question, one, 99).entries:
        found = board.fit(question, one, place)
        assert found is not None
        cards_there = tuple(board.nodes[place].cards[slot].id for slot in found[1])
        assert cards_there == alone[place]
        if version == board.version(place):
            assert (worth, slots) == found
        else:
            assert worth <= found[0] + 1e-9  # at the most

    plain = [board.refusal(one, place) for place in range(len(board.nodes))]
    misses, takers = find_misses(board.columns, question.ask, board.filters_of(question.ask))
    assert takers == plain.count(None)
    assert sum(miss.nodes for miss in misses) == len(plain) - takers
    for miss in misses:
        there = plain[miss.nearest]
        assert there is not None and there.code == miss.code
    counts = {}
    for refused in plain:
        if refused is not None:
            counts[refused.code] = counts.get(refused.code, 0) + 1
    told = {}
    for miss in misses:
        told[miss.code] = told.get(miss.code, 0) + miss.nodes
    assert told == counts


@given(fleets())
@settings(max_examples=150, deadline=None)
def test_many_nodes_answer_as_each_alone(snapshot):
    board = Board(snapshot)
    for one in snapshot.tasks:
        ask_all(board, one)


@given(fleets())
@settings(max_examples=150, deadline=None)
def test_the_same_after_bookings_and_after_their_undoing(snapshot):
    board, untouched = Board(snapshot), Board(snapshot)
    mark = board.mark()
    for one in snapshot.tasks:
        for place in board.ranked(one)[:1]:
            found = board.judge(one, place)
            assert not isinstance(found, Refused)
            board.take(one, place, found)
        for other in snapshot.tasks:
            if other.id not in board.keep_room:
                ask_all(board, other)
    board.undo(mark)
    for one in snapshot.tasks:
        ask_all(board, one)
        assert board.ranked(one) == untouched.ranked(one)
        for place in range(len(board.nodes)):
            assert board.judge(one, place) == untouched.judge(one, place)


@given(fleets())
@settings(max_examples=100, deadline=None)
def test_thinking_all_holds_away_is_a_fleet_without_them(snapshot):
    """But for who lives there, whose network it is and how many containers: cards tell nothing of that."""
    board = Board(snapshot)
    everyone = frozenset(range(50, 61))
    empty = Board(
        replace(
            snapshot,
            nodes=tuple(
                replace(
                    place,
                    cards=tuple(
                        replace(
                            one,
                            holds=tuple(held for held in one.holds if held.reserved_for > 1),
                            used_mb=None
                            if one.used_mb is None
                            else max(
                                one.foreign_mb or 0,
                                one.used_mb
                                - sum(
                                    held.measured_mb
                                    if held.measured_mb is not None
                                    else (one.vram_total_mb or 0) * (held.percent or 100) // 100
                                    for held in one.holds
                                    if not held.reserved_for
                                ),
                            ),
                        )
                        for one in place.cards
                    ),
                )
                for place in snapshot.nodes
            ),
        )
    )
    for one in [item for item in snapshot.tasks if item.id == 1]:
        for place in range(len(board.nodes)):
            assert board.judge(one, place, everyone) == empty.judge(one, place)
