"""Who goes where: order, filters, scores and the reasons of what waits."""

from datetime import timedelta

import pytest

from agent.contract.codes import Code, reason
from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.decide import Planner, decide
from apps.scheduling.policy.plan import Plan
from apps.scheduling.policy.snapshot import Snapshot
from tests.unit.scheduling.worlds import NO_RESERVE, NOW, card, codes, hold, node, one, places, task, world

# --- order ----------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-02")
def test_higher_priority_comes_first_then_first_come():
    late_and_high = task(3, priority=5)
    snapshot = world([task(2), task(1), late_and_high], [node(1, card(1), card(2))])

    plan = decide(snapshot, NOW)

    assert [placed.task_id for placed in plan.placements] == [3, 1]
    assert list(plan.refusals) == [2]


@pytest.mark.req("SCHED-02")
def test_equal_times_go_by_row():
    same = {"created_at": NOW}
    plan = decide(world([task(2, **same), task(1, **same)], [node(1, card(1))]), NOW)

    assert list(places(plan)) == [1]


@pytest.mark.req("SCHED-02")
def test_one_that_does_not_fit_does_not_hold_up_the_others():
    plan = decide(world([task(1, gpu_required=4), task(2)], [node(1, card(1))]), NOW)

    assert list(places(plan)) == [2]


def test_a_back_off_that_is_not_over_is_neither_placed_nor_refused():
    waiting = task(1, not_before=NOW + timedelta(seconds=1))
    snapshot = world([waiting], [node(1, card(1))])

    assert decide(snapshot, NOW) == Plan()
    assert 1 in places(decide(snapshot, NOW + timedelta(seconds=1)))


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-10")
def test_without_any_node_the_reason_is_that_there_is_none():
    assert decide(world([task(1)], []), NOW).refusals == {1: [reason(Code.NO_NODE)]}


@pytest.mark.req("TEN-09")
def test_a_node_closed_to_the_tenant_does_not_exist_for_it():
    closed = node(1, card(1), open_to=frozenset({7}))

    assert one(task(1), closed).refusals == {1: [reason(Code.NO_NODE)]}
    assert places(one(task(1, tenant_id=7), closed)) == {1: (1, (1,))}


@pytest.mark.req("TEN-09")
def test_scope_is_asked_before_anything_else():
    closed = node(1, card(1), open_to=frozenset({7}), online=False, cordoned=True)
    plan = decide(world([task(1)], [closed, node(2, online=False)]), NOW)

    assert plan.refusals[1] == [
        reason(Code.INSUFFICIENT_RESOURCES, nodes=1),
        reason(Code.NODE_OFFLINE, nodes=1),
    ]


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"online": False}, Code.NODE_OFFLINE), ({"cordoned": True}, Code.NODE_CORDONED)],
)
def test_offline_and_cordoned_nodes_take_nothing(fields, code):
    assert codes(one(task(1), node(1, card(1), **fields))) == [Code.INSUFFICIENT_RESOURCES, code]


@pytest.mark.req("AGENT-16")
def test_behind_a_closed_door_only_work_that_nobody_calls():
    closed = node(1, card(1), reachable=False)
    assert codes(one(task(1), closed)) == [Code.INSUFFICIENT_RESOURCES, Code.DOOR_CLOSED]
    assert places(one(task(1, task_type=TaskType.TRAINING, has_command=True), closed)) == {1: (1, (1,))}
    two = decide(world([task(1)], [closed, node(2, card(2))]), NOW)
    assert places(two) == {1: (2, (2,))}


@pytest.mark.req("AGENT-03")
@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"engine": "llamacpp"}, True),
        ({"engine": "sglang"}, False),  # the node does not report it
        ({"engine": ""}, False),
        ({"engine": "llamacpp", "has_command": True}, False),
        ({"engine": "llamacpp", "task_type": TaskType.TRAINING}, False),
        ({"engine": "llamacpp", "task_type": TaskType.CONTAINER}, False),
    ],
)
def test_the_process_runtime_runs_engines_that_its_agent_reports_only(fields, taken):
    embedded = node(1, runtime=RuntimeKind.PROCESS)
    plan = one(task(1, gpu_required=0, **fields), embedded)

    assert (1 in places(plan)) == taken
    assert taken or codes(plan) == [Code.INSUFFICIENT_RESOURCES, Code.RUNTIME_CANNOT]


def test_a_node_whose_runtime_is_not_known_yet_takes_nothing():
    assert Code.RUNTIME_CANNOT in codes(one(task(1), node(1, card(1), runtime=None)))


@pytest.mark.req("PAR-03", "AGENT-03")
@pytest.mark.parametrize(
    ("runtime", "host_ipc", "taken"),
    [
        (RuntimeKind.DOCKER, False, True),
        (RuntimeKind.DOCKER, True, True),
        (RuntimeKind.DOCKER, None, False),  # its agent is too old to know stages
        (RuntimeKind.PROCESS, False, False),
    ],
)
def test_a_stage_goes_to_an_agent_that_knows_what_it_is(runtime, host_ipc, taken):
    there = node(1, card(1), runtime=runtime, host_ipc=host_ipc)
    plan = one(task(1, host_network=True, engine="vllm"), there)

    assert (1 in places(plan)) == taken
    assert taken or Code.RUNTIME_CANNOT in codes(plan)


def test_an_engine_goes_to_cards_that_it_can_use():
    amd, old = card(1, vendor="ascend"), card(2, compute_capability="7.0")
    assert Code.RUNTIME_CANNOT in codes(one(task(1), node(1, amd, old)))
    assert places(one(task(1), node(1, amd, card(3, compute_capability="7.5")))) == {1: (1, (3,))}
    assert places(one(task(1), node(1, card(4, compute_capability=None)))) == {1: (1, (4,))}


def test_an_engine_that_needs_cards_does_not_go_without():
    assert Code.RUNTIME_CANNOT in codes(one(task(1, gpu_required=0, engine="vllm"), node(1)))


# --- cards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "model", "taken"),
    [
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("nvidia rtx 4090", "RTX 4090", True),
        ("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False),
        ("H20", "NVIDIA H200", False),
        ("A100", "NVIDIA A100", True),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A800", "NVIDIA A800-SXM4-80GB", True),
        ("a800 sxm4", "NVIDIA A800-SXM4-80GB", True),
        ("A100", "NVIDIA A100 80GB PCIe", True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H100 NVL", True),
        ("MI300X", "AMD Instinct MI300X OAM", True),
        ("A800-SXM4-80GB", "NVIDIA A800", False),
        ("A800-40GB", "NVIDIA A800-80GB", False),
        ("L40", "NVIDIA L40S", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090 D", False),
        ("RTX", "NVIDIA GeForce RTX 4090", False),
        ("", "whatever", True),
    ],
)
@pytest.mark.req("SCHED-03")
def test_only_cards_of_the_type_that_was_asked_for(wanted, model, taken):
    plan = one(task(1, gpu_type=wanted), node(1, card(1, model=model)))

    assert (1 in places(plan)) == taken
    if not taken:
        assert plan.refusals[1][1] == reason(Code.GPU_TYPE_MISMATCH, nodes=1, wanted=wanted)


def test_work_without_cards_takes_none_and_prefers_nodes_without():
    snapshot = world([task(1, gpu_required=0, engine="llamacpp")], [node(1, card(1)), node(2)])

    assert places(decide(snapshot, NOW)) == {1: (2, ())}


def test_work_without_cards_runs_beside_full_ones():
    full = node(1, card(1, hold(), used_mb=24_000))
    assert places(one(task(1, gpu_required=0, engine="llamacpp"), full)) == {1: (1, ())}


@pytest.mark.req("SCHED-05")
@pytest.mark.parametrize(
    ("present", "asked", "taken"),
    [
        ([], None, True),
        ([10], None, False),  # the card alone
        ([None], 10, False),
        ([40], 50, True),
        ([40], 51, False),
        ([], 90, True),
        ([], 91, False),
        ([30, 30], 30, True),
        ([30, 30], 31, False),
    ],
)
def test_promises_stay_within_a_hundred_less_the_reserve(present, asked, taken):
    shared = card(1, *(hold(percent=percent) for percent in present))
    plan = one(task(1, percent=asked), node(1, shared))

    assert (1 in places(plan)) == taken
    if taken:
        return
    if asked is None:
        assert plan.refusals[1][1] == reason(Code.CARDS_SHORT, nodes=1, wanted=1, free=0)
    else:
        largest = 0 if None in present else 90 - sum(present)
        assert plan.refusals[1][1] == reason(
            Code.COMMITMENT_FULL,
            nodes=1,
            wanted_percent=asked,
            largest_percent=largest,
            node="n001",
            card=1,
        )


@pytest.mark.req("SCHED-07")
def test_several_cards_are_whole_ones_of_one_node():
    begun = card(1, hold(percent=10))
    plan = decide(
        world(
            [task(1, gpu_required=2, percent=30)],
            [node(1, begun, card(2)), node(2, card(3)), node(3, card(4), begun, card(5))],
        ),
        NOW,
    )

    assert places(plan) == {1: (3, (4, 5))}
    assert plan.placements[0].percent is None


@pytest.mark.req("SCHED-07")
def test_too_few_whole_cards_say_how_many_the_best_node_has():
    plan = decide(
        world([task(1, gpu_required=4)], [node(1, card(1)), node(2, card(2), card(3), card(4, hold()))]), NOW
    )

    assert plan.refusals[1] == [
        reason(Code.INSUFFICIENT_RESOURCES, nodes=2),
        reason(Code.CARDS_SHORT, nodes=2, wanted=4, free=2),
    ]


@pytest.mark.req("SCHED-07")
def test_several_cards_are_of_one_model():
    mixed = node(1, card(1, model="A100"), card(2, model="H100"), card(3, model="H100"))

    assert places(one(task(1, gpu_required=2), mixed)) == {1: (1, (2, 3))}
    assert Code.CARDS_SHORT in codes(one(task(1, gpu_required=3), mixed))


@pytest.mark.req("SCHED-08")
@pytest.mark.parametrize("task_type", [TaskType.TRAINING, TaskType.CONTAINER])
def test_inference_and_other_work_never_share_a_card(task_type):
    serving, other = card(1, hold(percent=10)), card(2, hold(percent=10, inference=False))
    nodes = node(1, serving, other)

    assert Code.CARDS_SHORT in codes(one(task(1, task_type=task_type, percent=10, engine=""), nodes))
    assert places(one(task(1, percent=10), nodes)) == {1: (1, (1,))}
    assert Code.CARDS_SHORT in codes(one(task(1, percent=10), node(1, other)))


@pytest.mark.req("SCHED-09", "SHARE-01")
def test_tenants_share_a_card_only_inside_a_shared_group():
    of_two = node(1, card(1, hold(tenant=2, percent=10)))
    asked = task(1, percent=10)

    assert codes(one(asked, of_two)) == [Code.INSUFFICIENT_RESOURCES, Code.RED_LINE]
    assert 1 in places(one(asked, of_two, shared={1: frozenset({1, 2})}))
    assert 1 not in places(one(asked, of_two, shared={2: frozenset({1, 2})}))


@pytest.mark.req("SCHED-09")
def test_one_stranger_among_friends_puts_the_card_out_of_bounds():
    crowd = node(1, card(1, hold(tenant=2, percent=10), hold(tenant=3, percent=10)))

    assert 1 not in places(one(task(1, percent=10), crowd, shared={1: frozenset({2})}))


# --- tenants --------------------------------------------------------------------------------------


@pytest.mark.req("TEN-01")
def test_nothing_of_a_suspended_tenant_is_placed():
    snapshot = world([task(1), task(2, tenant_id=2)], [node(1, card(1), card(2))], suspended={1: "unpaid"})
    plan = decide(snapshot, NOW)

    assert list(places(plan)) == [2]
    assert plan.refusals[1] == [reason(Code.TENANT_SUSPENDED, why="unpaid")]


# --- scores ---------------------------------------------------------------------------------------


def test_a_promise_goes_to_the_fullest_card_that_has_room():
    begun = node(2, card(3), card(4, hold(percent=30)))
    plan = decide(world([task(1, percent=30)], [node(1, card(1), card(2)), begun]), NOW)

    assert places(plan) == {1: (2, (4,))}


def test_a_shape_sees_what_other_shapes_began_meanwhile():
    """Two promises of another shape fill a card of the second node; the third task joins them there
    instead of its own kind on the first."""
    nodes = [node(1, card(1, model="A10")), node(2, card(2, model="A100"))]
    tasks = [
        task(1, percent=30),
        *(task(n, percent=30, gpu_type="A100") for n in (2, 3)),
        task(4, percent=30),
    ]

    assert places(decide(world(tasks, nodes), NOW))[4] == (2, (2,))


def test_replicas_of_one_group_spread_over_nodes():
    nodes = [node(n, card(10 * n), card(10 * n + 1)) for n in (1, 2, 3)]
    tasks = [task(n, group_id=7) for n in (1, 2, 3)]
    plan = decide(world(tasks, nodes, weights={"spread": 2.0}), NOW)

    assert sorted(placed.node_id for placed in plan.placements) == [1, 2, 3]


def test_replicas_that_stand_already_count_for_spreading():
    nodes = [node(1, card(1, hold()), card(2), siblings={7: 1}), node(2, card(3), card(4))]
    plan = decide(world([task(1, group_id=7)], nodes, weights={"spread": 2.0}), NOW)

    assert places(plan)[1][0] == 2


def test_weights_turn_the_choice():
    nodes = [node(1, card(1, hold()), card(2), siblings={7: 1}), node(2, card(3), card(4))]
    plan = decide(world([task(1, group_id=7)], nodes, weights={"spread": 0.0, "binpack": 1.0}), NOW)

    assert places(plan)[1][0] == 1


def test_replicas_on_two_nodes_share_them_evenly():
    nodes = [node(n, *(card(10 * n + k) for k in range(8))) for n in (1, 2)]
    plan = decide(world([task(n, group_id=7) for n in range(1, 9)], nodes, weights={"spread": 5.0}), NOW)

    assert sorted(placed.node_id for placed in plan.placements) == [1] * 4 + [2] * 4


# --- portions and faults --------------------------------------------------------------------------


@pytest.mark.req("SCHED-14")
def test_portions_give_the_same_plan_as_all_at_once():
    tasks = [task(n, percent=(20, 30, None)[n % 3]) for n in range(1, 30)]
    snapshot = world(tasks, [node(n, card(10 * n), card(10 * n + 1)) for n in range(1, 5)])
    planner = Planner(snapshot)
    whole, portions = decide(snapshot, NOW), [planner.portion(4, NOW) for n in range(0, 29, 4)]

    assert [placed for plan in portions for placed in plan.placements] == whole.placements
    assert planner.portion(4, NOW) is None


@pytest.mark.req("RECOV-05")
def test_a_task_that_a_plugin_trips_over_is_marked_and_the_rest_placed():
    bad = task(1, gpu_type=5)  # not a text
    plan = decide(world([bad, task(2)], [node(1, card(1))]), NOW)

    assert list(places(plan)) == [2]
    assert plan.refusals[1] == [reason(Code.INTERNAL)]
    assert isinstance(plan.broken[1], Exception)


def test_a_fatal_error_of_the_loop_ends_the_decision():
    class Lost(Exception):
        pass

    def breathe() -> None:
        raise Lost

    planner = Planner(world([task(1)], [node(1, card(1))]), breathe=breathe, fatal=(Lost,))
    with pytest.raises(Lost):
        planner.place([task(1)], NOW)


def test_an_empty_world_gives_an_empty_plan():
    assert decide(Snapshot(tasks=(), nodes=()), NOW) == Plan()
    assert decide(world([], [node(1, card(1))], reserve=NO_RESERVE), NOW) == Plan()
