"""What each check refuses, with its numbers: node load, folders, cap, red lines, whose memory it is, what an
engine wants at its start, kept room."""

import pytest

from agent.contract.codes import Code, reason
from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.registry import load_filters
from apps.scheduling.policy.snapshot import Thresholds
from tests.unit.scheduling.worlds import NOW, card, codes, hold, node, one, places, task, world

WHERE = {"node": "n001", "card": 1}


def told(plan, code, task_id=1):
    """The numbers of one reason."""
    return next(dict(why.params) for why in plan.refusals[task_id] if why.code == code)


# --- load -----------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-03")
@pytest.mark.parametrize("what", ["cpu", "memory", "disk"])
def test_a_node_in_use_beyond_its_threshold_takes_nothing(what):
    at, beyond = {f"{what}_percent": 90.0}, {f"{what}_percent": 95.4}

    assert places(one(task(1), node(1, card(1), **at)))
    plan = one(task(1), node(1, card(1), **beyond))
    assert told(plan, Code.NODE_BUSY) == {"nodes": 1, "what": what, "percent": 95, "limit": 90}


@pytest.mark.req("SCHED-03")
@pytest.mark.parametrize("what", ["cpu", "memory", "disk"])
def test_a_load_that_is_not_known_is_never_taken_for_none(what):
    plan = one(task(1), node(1, card(1), **{f"{what}_percent": None}))

    assert codes(plan) == [Code.INSUFFICIENT_RESOURCES, Code.NODE_LOAD_UNKNOWN]


@pytest.mark.req("SCHED-03")
def test_thresholds_are_settings_and_the_least_busy_node_is_told():
    nodes = [node(1, card(1), cpu_percent=80.0), node(2, card(2), disk_percent=65.0)]
    plan = decide(world([task(1)], nodes, thresholds=Thresholds(60, 60, 60)), NOW)

    assert told(plan, Code.NODE_BUSY) == {"nodes": 2, "what": "disk", "percent": 65, "limit": 60}


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-03", "AGENT-05")
@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({"volumes": ("/data/sets:/sets:ro",)}, True),
        ({"volumes": ("/database:/x",)}, False),  # a segment, not a beginning of the name
        ({"volumes": ("/data/../etc:/x",)}, False),
        ({"model_path": "/data/models/m"}, True),
        ({"model_path": "/models/m"}, False),
        ({"model_path": "m"}, True),  # a name, looked up by the agent
        ({"model_path": "/models/m", "engine": "trtllm"}, True),  # inside the image (ENG-03)
    ],
)
def test_what_is_mounted_lies_in_folders_of_the_node(asked, taken):
    plan = one(task(1, **asked), node(1, card(1), volume_prefixes=("/data",)))

    assert (1 in places(plan)) == taken


@pytest.mark.req("AGENT-05")
def test_the_path_that_is_not_there_is_the_tenants_own():
    asked = task(1, volumes=("/data/a:/a", "/secret//b:/b"))

    plan = one(asked, node(1, card(1), volume_prefixes=("/data",)))
    assert told(plan, Code.VOLUME_NOT_THERE) == {"nodes": 1, "path": "/secret/b"}
    assert 1 in places(one(asked, node(1, card(1), volume_prefixes=None)))  # its agent checks by itself


# --- cap ------------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-06", "SCHED-16")
def test_a_node_takes_as_many_inference_containers_as_its_cap_says():
    full = node(1, card(1), card(2), inference_cap=3, inference_count=3)

    plan = one(task(1), full)
    assert told(plan, Code.INFERENCE_CAP) == {"nodes": 1, "count": 3, "cap": 3}
    assert 1 in places(one(task(1, counted=False), full))
    assert 1 in places(one(task(1, task_type=TaskType.TRAINING, engine=""), full))


@pytest.mark.req("SCHED-06")
def test_placements_of_one_decision_count_for_the_cap():
    nodes = [node(1, *(card(n) for n in range(1, 5)), inference_cap=3, inference_count=1)]

    assert len(places(decide(world([task(n) for n in range(1, 5)], nodes), NOW))) == 2


# --- red line of a node ---------------------------------------------------------------------------


@pytest.mark.req("SCHED-09", "AGENT-18")
@pytest.mark.parametrize(
    ("asked", "fields", "taken"),
    [
        ({}, {"host_wide": frozenset({2})}, False),
        ({}, {"tenants": frozenset({2})}, True),
        ({"host_network": True}, {"tenants": frozenset({2}), "host_ipc": False}, False),
        ({"host_network": True}, {"tenants": frozenset({1}), "host_ipc": False}, True),
        ({"gpu_required": 2}, {"tenants": frozenset({2}), "host_ipc": None}, False),  # not told counts as yes
        ({"gpu_required": 2}, {"tenants": frozenset({2}), "host_ipc": True}, False),
        ({"gpu_required": 2}, {"tenants": frozenset({2}), "host_ipc": False}, True),
        ({"gpu_required": 2, "task_type": TaskType.TRAINING}, {"tenants": frozenset({2})}, True),
    ],
)
def test_who_has_the_hosts_network_or_ipc_shares_the_node_with_friends_only(asked, fields, taken):
    plan = one(task(1, **asked), node(1, card(1), card(2), **fields))

    assert (1 in places(plan)) == taken
    assert taken or plan.refusals[1][1] == reason(Code.RED_LINE, nodes=1)
    friends = {1: frozenset({2}), 2: frozenset({1})}
    assert 1 in places(one(task(1, **asked), node(1, card(1), card(2), **fields), shared=friends))


@pytest.mark.req("SCHED-09")
def test_the_red_line_holds_between_tasks_of_one_decision():
    nodes = [node(1, card(1), card(2), host_ipc=False)]
    wide_first = [task(1, host_network=True), task(2, tenant_id=2)]
    wide_last = [task(1), task(2, tenant_id=2, host_network=True)]

    assert list(places(decide(world(wide_first, nodes), NOW))) == [1]
    assert list(places(decide(world(wide_last, nodes), NOW))) == [1]


# --- whose memory ---------------------------------------------------------------------------------


@pytest.mark.req("SCHED-04")
def test_strangers_memory_is_named_where_it_is_the_cause():
    """24,000 - 500 - 2,400 = 21,100 MB without them."""
    crowded = {"used_mb": 10_000, "foreign_mb": 10_000, "foreign": "python[77]"}

    plan = one(task(1, memory_mb=20_000, engine="llamacpp"), node(1, card(1, **crowded)))
    assert told(plan, Code.FOREIGN_MEMORY) == {
        "nodes": 1,
        "wanted_mb": 20_000,
        "free_mb": 11_100,
        "short_mb": 8_900,
        "foreign_mb": 10_000,
        "process": "python[77]",
        **WHERE,
    }
    too_much = one(task(1, memory_mb=21_200, engine="llamacpp"), node(1, card(1, **crowded)))
    assert codes(too_much) == [Code.INSUFFICIENT_RESOURCES, Code.VRAM_SHORT]


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize(
    ("measured", "foreign", "free"),
    [(4_000, 0, 50), (15_000, 0, 37), (None, 0, 50), (4_000, 6_000, 35), (15_000, 6_000, 12)],
)
def test_the_larger_of_promise_and_use_counts_for_each_owner(measured, foreign, free):
    """40 % of 24,000 MB are promised: 9,600."""
    used = foreign + (measured or 0)
    shared = node(
        1, card(1, hold(percent=40, measured_mb=measured), used_mb=used, foreign_mb=foreign, foreign="x")
    )

    assert 1 in places(one(task(1, percent=free, engine="llamacpp"), shared))
    assert 1 not in places(one(task(1, percent=free + 1, engine="llamacpp"), shared))


@pytest.mark.req("SCHED-04")
def test_a_driver_that_tells_no_owner_has_all_use_stand_against_all_promises():
    shared = node(1, card(1, hold(percent=40), used_mb=12_000))

    assert 1 in places(one(task(1, percent=50, engine="llamacpp"), shared))
    assert 1 not in places(one(task(1, percent=51, engine="llamacpp"), shared))


# --- engines --------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-04")
def test_vllm_wants_more_free_at_its_start_than_its_share():
    half = node(1, card(1, used_mb=12_000, foreign_mb=12_000))

    plan = one(task(1, percent=50), half)
    assert told(plan, Code.ENGINE_MEMORY) == {
        "nodes": 1,
        "wanted_mb": 12_000,
        "free_mb": 12_000,
        "percent": 50,
        **WHERE,
    }
    assert 1 in places(one(task(1, percent=49), half))
    assert 1 in places(one(task(1, percent=50, engine="llamacpp"), half))
    assert 1 in places(one(task(1, percent=50, has_command=True), half))  # flags of the tenant's own


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize(("used", "taken"), [(2_399, True), (2_400, False)])
def test_alone_on_a_card_vllm_takes_its_own_default(used, taken):
    plan = one(task(1), node(1, card(1, used_mb=used, foreign_mb=used)))

    assert (1 in places(plan)) == taken
    assert taken or told(plan, Code.ENGINE_MEMORY)["percent"] == 90


# --- promises -------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-16")
def test_what_has_no_port_is_not_counted_on_its_card():
    busy = node(1, card(1, hold(percent=80)))
    uncounted = {"counted": False, "engine": "llamacpp"}

    assert 1 in places(one(task(1, percent=20, **uncounted), busy))
    assert 1 not in places(one(task(1, percent=20), busy))
    assert 1 not in places(one(task(1, percent=20, **uncounted), node(1, card(1, hold()))))
    begun = node(1, card(1, hold(percent=60)))
    both = decide(world([task(1, percent=10, **uncounted), task(2, percent=29)], [begun]), NOW)
    assert len(places(both)) == 2


@pytest.mark.req("SCHED-05", "SHARE-01")
def test_two_at_45_percent_and_a_third_is_refused_with_its_numbers():
    nodes = [node(1, card(1))]
    plan = decide(world([task(n, percent=45) for n in (1, 2, 3)], nodes), NOW)

    assert list(places(plan)) == [1, 2]
    assert told(plan, Code.COMMITMENT_FULL, 3) == {
        "nodes": 1,
        "wanted_percent": 45,
        "largest_percent": 0,
        **WHERE,
    }


@pytest.mark.req("SCHED-06")
def test_a_sleeper_keeps_its_promise_and_a_borrower_makes_none():
    lent = card(1, hold(percent=60, sleeping=True), hold(percent=None, borrowed=True, inference=True))

    assert 1 in places(one(task(1, percent=30), node(1, lent)))
    assert 1 not in places(one(task(1, percent=31), node(1, lent)))


@pytest.mark.req("SCHED-11")
def test_kept_room_is_full_for_others_and_nothing_for_its_task():
    kept = node(1, card(1, hold(reserved_for=7)))

    assert 1 not in places(one(task(1), kept))
    assert places(one(task(7), kept)) == {7: (1, (1,))}
    both = decide(world([task(1), task(7)], [kept, node(2, cordoned=True)]), NOW)
    assert list(places(both)) == [7]


# --- who is asked and counted ---------------------------------------------------------------------


@pytest.mark.req("TEN-09")
def test_the_nearest_miss_is_never_on_a_node_that_the_tenant_may_not_use():
    near = node(1, card(1, used_mb=1_000), open_to=frozenset({9}))
    plan = decide(world([task(1, memory_mb=20_500, engine="")], [near, node(2, card(2, used_mb=9_000))]), NOW)

    assert told(plan, Code.VRAM_SHORT)["node"] == "n002"
    assert plan.refusals[1][0] == reason(Code.INSUFFICIENT_RESOURCES, nodes=1)


@pytest.mark.req("SCHED-13")
def test_a_type_that_is_there_but_offline_is_told_as_such():
    nodes = [node(1, card(1, model="H100"), online=False), node(2, card(2))]

    assert (
        reason(Code.GPU_TYPE_OFFLINE, wanted="H100", nodes=1)
        in decide(world([task(1, gpu_type="H100")], nodes), NOW).refusals[1]
    )
    other = decide(world([task(1, gpu_type="H200")], nodes), NOW)
    assert Code.GPU_TYPE_OFFLINE not in codes(other)


@pytest.mark.req("TEN-09")
def test_the_allow_list_is_asked_first():
    assert load_filters()[0].name == "allow_list"


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-03")
def test_work_goes_where_its_model_lies_then_where_its_image_lies():
    asked = {"model_path": "/m/a", "image": "vllm:1"}
    bare, image = node(1, card(1)), node(2, card(2), images=frozenset({"vllm:1"}))
    model = node(3, card(3), models=frozenset({"/m/a"}))

    assert places(decide(world([task(1, **asked)], [bare, image]), NOW)) == {1: (2, (2,))}
    assert places(decide(world([task(1, **asked)], [bare, model, image], weights={"model": 2}), NOW)) == {
        1: (3, (3,))
    }


@pytest.mark.req("SCHED-03", "SCHED-07")
def test_several_cards_are_joined_ones_then_neighbours():
    split = [card(1, link_group=0), card(2, pcie_root="a"), card(3, link_group=0), card(4, pcie_root="a")]
    assert places(one(task(1, gpu_required=2), node(1, *split))) == {1: (1, (1, 3))}
    roots = [card(1, pcie_root="a"), card(2, pcie_root="b"), card(3, pcie_root="b")]
    assert places(one(task(1, gpu_required=2), node(1, *roots))) == {1: (1, (2, 3))}


@pytest.mark.req("SCHED-07")
def test_a_node_with_joined_cards_comes_before_one_without():
    apart = node(1, card(1), card(2))
    joined = node(2, card(3, link_group=1), card(4, link_group=1))

    assert places(decide(world([task(1, gpu_required=2)], [apart, joined]), NOW)) == {1: (2, (3, 4))}


@pytest.mark.req("SCHED-07")
def test_the_smallest_joined_set_that_suffices_is_used():
    four = [card(n, link_group=0) for n in (1, 2, 3, 4)]
    pair = [card(n, link_group=1) for n in (5, 6)]

    assert places(one(task(1, gpu_required=2), node(1, *four, *pair))) == {1: (1, (5, 6))}


def test_work_of_the_process_runtime_needs_its_engine_there():
    embedded = node(1, card(1), runtime=RuntimeKind.PROCESS, engines=frozenset({"llamacpp"}))

    assert 1 in places(one(task(1, engine="llamacpp"), embedded))
    assert Code.RUNTIME_CANNOT in codes(one(task(1, engine="vllm"), embedded))
