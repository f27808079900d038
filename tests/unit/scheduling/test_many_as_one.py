"""Many nodes asked at once answer as each of them does alone, also after bookings and their undoing."""

from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy import circles, shapes
from apps.scheduling.policy.ask import SHAPE
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.questions import ask_near
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import NodeView, Reserve, TaskView
from tests.examples import examples
from tests.unit.scheduling.worlds import NOW, card, hold, node, task, world

pytestmark = pytest.mark.req("SCHED-03", "SCHED-14")

TENANTS = st.integers(1, 3)
FRIENDS = [{}, {1: frozenset({2}), 2: frozenset({1})}]


def seldom(usual, *others):
    """Mostly the usual value: a check that refuses nearly everything hides all that come after it."""
    return st.sampled_from([usual] * 6 + list(others))


@st.composite
def cards(draw, number):
    holds = []
    for _ in range(draw(st.integers(0, 2))):
        holds.append(
            hold(
                draw(TENANTS),
                draw(st.sampled_from([10, 30, 40, None])),
                inference=draw(seldom(True, False)),
                task_id=draw(st.integers(50, 60)),
                priority=draw(st.integers(0, 1)),
                preemptible=draw(st.booleans()),
                borrowed=draw(seldom(False, True)),
                measured_mb=draw(st.sampled_from([None, 500, 9_000])),
                reserved_for=draw(seldom(0, 1)),
            )
        )
    return card(
        number,
        *holds,
        model=draw(seldom("RTX 4090", "A100", "H100")),
        vendor=draw(seldom("nvidia", "ascend")),
        vram_total_mb=draw(seldom(80_000, 8_000, 24_000, None)),
        used_mb=draw(seldom(500, 5_000, 23_000, None)),
        foreign_mb=draw(st.sampled_from([None, 0, 4_000])),
        compute_capability=draw(seldom(None, "7.0", "8.6")),
        quarantined=draw(seldom(False, True)),
        link_group=draw(st.sampled_from([None, 0, 1])),
        pcie_root=draw(st.sampled_from(["", "a", "b"])),
    )


@st.composite
def nodes(draw, number) -> NodeView:
    return node(
        number,
        *(draw(cards(number * 10 + slot)) for slot in range(draw(st.integers(0, 4)))),
        online=draw(seldom(True, False)),
        cordoned=draw(seldom(False, True)),
        reachable=draw(seldom(True, False)),
        runtime=draw(seldom(RuntimeKind.DOCKER, RuntimeKind.PROCESS, None)),
        engines=frozenset({"llamacpp"}),
        open_to=draw(seldom(None, frozenset({1}), frozenset({2}), frozenset())),
        port_first=100,
        port_last=draw(seldom(110, 99, 100, 102)),
        ports=draw(st.frozensets(st.integers(100, 102), max_size=2)),
        siblings=draw(st.sampled_from([{}, {7: 1}])),
        cpu_percent=draw(seldom(10.0, 90.0, 95.0, None)),
        memory_percent=draw(seldom(10.0, 90.0, 95.0, None)),
        volume_prefixes=draw(st.sampled_from([None, ("/data",), ("/models", "/data")])),
        inference_cap=draw(seldom(None, 1, 2)),
        inference_count=draw(st.integers(0, 2)),
        models=draw(st.frozensets(st.sampled_from(["/models/a", "/models/b"]))),
        images=draw(st.frozensets(st.just("vllm:1"))),
        tenants=draw(st.frozensets(TENANTS, max_size=2)),
        host_wide=draw(seldom(frozenset(), frozenset({2}))),
        host_ipc=draw(st.sampled_from([False, True, None])),
    )


@st.composite
def tasks(draw, number) -> TaskView:
    return task(
        number,
        tenant_id=draw(TENANTS),
        group_id=7,
        task_type=draw(seldom(TaskType.INFERENCE, TaskType.TRAINING)),
        gpu_required=draw(seldom(1, 0, 2, 2, 3)),
        gpu_type=draw(seldom("", "A100")),
        memory_mb=draw(seldom(None, 4_000, 20_000)),
        percent=draw(st.sampled_from([None, 10, 30, 45, 60])),
        engine=draw(st.sampled_from(["vllm", "llamacpp", ""])),
        has_command=draw(seldom(False, True)),
        ports=draw(st.sampled_from([(), ((8000, 0),), ((8000, 101),), ((8000, 0), (8001, 101))])),
        refused_by=draw(seldom(frozenset(), frozenset({"node-2"}))),
        image=draw(st.sampled_from(["", "vllm:1"])),
        model_path=draw(seldom("", "/models/a", "/models/b", "name")),
        volumes=draw(seldom((), ("/data/x:/x",))),
        counted=draw(seldom(True, False)),
        host_network=draw(seldom(False, True)),
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
        if version == board.versions[place]:
            assert (worth, slots) == found
        else:
            assert worth <= found[0] + 1e-9  # at the most

    others = replace(one, id=99)  # one for whom no room is kept
    plain = [board.judge(others, place) for place in range(len(board.nodes))]
    plain = [found if isinstance(found, Refused) else None for found in plain]
    misses, takers = board.misses.find(question.ask)
    assert takers == plain.count(None)
    assert sum(miss.nodes for miss in misses) == len(plain) - takers
    for miss in misses:
        assert board.refusal(question.ask, miss.nearest, miss.by) == plain[miss.nearest]
    counts = {}
    for refused in plain:
        if refused is not None:
            counts[refused.code] = counts.get(refused.code, 0) + 1
    told = {}
    for miss in misses:
        code = miss.by.code(question.ask)
        told[code] = told.get(code, 0) + miss.nodes
    assert told == counts


def ask_together(board: Board, waiting: Iterable[TaskView]) -> None:
    """What shapes hear that are asked about together, against what each hears of each node alone."""
    alike: dict[object, list[TaskView]] = defaultdict(list)
    for one in waiting:
        question = board.question(one)
        if question.is_near_best and one.id not in board.keep_room:
            alike[question.ask.form, question.circle.word].append(one)
    for some in alike.values():
        questions = [board.question(one) for one in some]
        heard = ask_near(questions, [99] * len(some), board.columns)
        assert ask_near(questions, [1] * len(some), board.columns) == [entries[:1] for entries in heard]
        for one, question, entries in zip(some, questions, heard, strict=True):
            alone = []
            for place, there in enumerate(board.nodes):
                near = question.stretch is not None and question.stretch.has(place)
                if near and question.ask.model_path in there.models:
                    found = board.fit(question, one, place)
                    if found is not None:
                        alone.append((found[0], place, board.versions[place], found[1]))
            assert entries == sorted(alone)


@given(fleets())
@settings(max_examples=examples(80), deadline=None)
def test_many_nodes_answer_as_each_alone(snapshot):
    board = Board(snapshot)
    ask_together(board, snapshot.tasks)
    for one in snapshot.tasks:
        ask_all(board, one)


@given(fleets())
@settings(max_examples=examples(80), deadline=None)
def test_the_same_after_bookings_and_after_their_undoing(snapshot):
    board, untouched = Board(snapshot), Board(snapshot)
    mark = board.mark()
    for one in snapshot.tasks:
        for place in board.ranked(one)[:1]:
            found = board.judge(one, place)
            assert not isinstance(found, Refused)
            board.take(one, place, found)
        ask_together(board, snapshot.tasks)
        for other in snapshot.tasks:
            if other.id not in board.keep_room:
                ask_all(board, other)
    board.undo(mark)
    for one in snapshot.tasks:
        ask_all(board, one)
        assert board.ranked(one) == untouched.ranked(one)
        for place in range(len(board.nodes)):
            assert board.judge(one, place) == untouched.judge(one, place)


@pytest.mark.parametrize(
    "taken_by",
    [
        lambda board, one: not isinstance(board.judge(one, 0), Refused),
        lambda board, one: board.fit(board.question(one), one, 0) is not None,
        lambda board, one: board.places(one) == [0],
        lambda board, one: ask_near([board.question(one)], [1], board.columns) != [[]],
        lambda board, one: board.misses.find(board.question(one).ask)[1] == 1,
    ],
    ids=["judge", "fit", "places", "near", "misses"],
)
def test_what_was_booked_counts_whoever_is_asked_first(taken_by):
    first, second = (task(n, percent=50, model_path="/models/a") for n in (1, 2))
    there = node(1, card(1), models=frozenset({"/models/a"}))
    snapshot = world([first, second], [there], weights={"model": 2.0})
    board = Board(snapshot)
    assert taken_by(board, second)
    board.take(first, 0, (1,))
    assert not taken_by(board, second)
    board.undo(0)
    assert taken_by(board, second)


@given(fleets())
@settings(max_examples=examples(60), deadline=None)
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


@pytest.mark.req("SCHED-09")
def test_more_sets_of_tenants_than_a_word_has_bits_are_kept_apart():
    """Each tenant finds room beside its own work only, also where it was told of after others had come."""
    many = range(1, 2 * circles.BITS + 9)
    waiting = [task(n, tenant_id=n, percent=10, engine="") for n in many]
    fleet = [node(n, card(n, hold(n, 80)), tenants=frozenset({n})) for n in many]
    plan = decide(world(waiting, fleet), NOW)
    assert {placed.task_id: placed.node_id for placed in plan.placements} == {n: n for n in many}

    board = Board(world([], [node(1, card(1)), node(2, card(2))]))
    for one in waiting:
        assert board.places(one) == ([0, 1] if one.id == 1 else [1] if one.id == 2 else [])
        for place in board.places(one)[:1]:
            board.take(one, place, (board.nodes[place].cards[0].id,))


OTHERS = {
    "tenant_id": 2,
    "gpu_required": 2,
    "gpu_type": "A100",
    "memory_mb": 20_000,
    "percent": 60,
    "engine": "vllm",
    "has_command": True,
    "ports": ((8000, 101),),
    "refused_by": frozenset({"node-1"}),
    "image": "vllm:1",
    "model_path": "/models/a",
    "volumes": ("/else/x:/x",),
    "counted": False,
    "host_network": True,
    "task_type": TaskType.TRAINING,
}


def fleet_where_each_field_matters():
    """Each node takes some tasks only, for another reason."""
    big = {"vram_total_mb": 80_000, "used_mb": 0}
    return [
        node(1, card(11, **big), card(12, **big)),
        node(2, card(21, hold(2, 30), **big)),
        node(3, card(31, hold(1, 30), **big)),
        node(4, card(41, hold(1, 70), **big), inference_cap=1, inference_count=1),
        node(5, card(51, **big), inference_cap=1, inference_count=1),
        node(6, card(61, **big), ports=frozenset({101})),
        node(7, card(71, **big), port_first=100, port_last=100, ports=frozenset({100})),
        node(8, card(81, **big), open_to=frozenset({2})),
        node(9, card(91, **big), volume_prefixes=("/data",)),
        node(10, card(101, vram_total_mb=12_000)),
        node(11, card(111, model="A100", **big)),
        node(12, card(121, vendor="ascend", **big), card(122, vendor="ascend", **big)),
        node(13, card(131, vram_total_mb=80_000, used_mb=56_000, foreign_mb=56_000)),
        node(14, card(141, **big), tenants=frozenset({2}), host_ipc=False),
        node(15, card(151, **big), host_wide=frozenset({2})),
        node(16, card(161, **big), models=frozenset({"/models/a"}), images=frozenset({"vllm:1"})),
        node(17, card(171, **big), runtime=RuntimeKind.PROCESS, engines=frozenset({"llamacpp"})),
        node(18, card(181, **big), reachable=False),
        node(19),
    ]


@pytest.mark.parametrize("asked", [{"percent": 30, "memory_mb": 3_000}, {"memory_mb": 3_000}, {}])
@pytest.mark.parametrize("closed", [True, False])
def test_tasks_that_differ_in_one_field_are_not_taken_for_alike(asked, closed):
    """What was learned of one task is used for those alone that all checks see the same way."""
    first = task(1, engine="llamacpp", **asked)
    fleet = [one for one in fleet_where_each_field_matters() if closed or one.open_to is None]
    for field, value in OTHERS.items():
        other = replace(first, **{field: value})
        for pair in (first, other), (other, first):
            board = Board(world([], fleet))
            for one in pair:
                ask_all(board, one)


@given(fleets())
@settings(max_examples=examples(40), deadline=None)
def test_the_same_in_any_fleet(snapshot):
    board, first = Board(snapshot), snapshot.tasks[0]
    ask_all(board, first)
    for field, value in OTHERS.items():
        ask_all(board, replace(first, **{field: value}))


def test_each_field_that_is_read_of_a_task_is_tried():
    assert set(OTHERS) == set(SHAPE)


@given(fleets())
@settings(max_examples=examples(40), deadline=None)
def test_asked_ahead_nobody_is_overlooked_and_nothing_given_twice(snapshot):
    """With all shapes of a decision asked about at its beginning: each placement is one that the node, alone,
    allows by then, and nobody waits whom a node would take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "AHEAD", 1 / 99)
        plan = decide(
            replace(snapshot, tasks=tuple(replace(one, id=one.id + 10) for one in snapshot.tasks)), NOW
        )
    waiting = {one.id + 10: one for one in snapshot.tasks}
    board = Board(snapshot)
    for placed in plan.placements:
        one = replace(waiting[placed.task_id], id=placed.task_id)
        place = board.place_of[placed.node_id]
        assert not isinstance(board.judge(one, place), Refused)
        board.take(one, place, placed.cards)
    assert not plan.broken
    for number in plan.refusals:
        assert board.places(replace(waiting[number], id=number)) == []
