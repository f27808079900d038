"""What can never stand on a tenant's cards is told when a service is created; what may, is not (SVC-09)."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from agent.contract.states import Parallelism, TaskType
from apps.inference.policy.fitting import CardKind, find_misfits
from apps.scheduling.policy.snapshot import Reserve, TaskView

TASK = TaskView(
    id=-1,
    public_id="",
    version=0,
    tenant_id=1,
    group_id=-1,
    priority=0,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    task_type=TaskType.INFERENCE,
    gpu_required=1,
    engine="vllm",
)
L20 = CardKind("nvidia", "NVIDIA L20", 46_068, "8.9", 8)
T4 = CardKind("nvidia", "Tesla T4", 15_360, "7.5", 4)
SILENT = CardKind("nvidia", "NVIDIA L20", None, "8.9", 1)
FLEET = {(L20,), (T4,)}


def misfits(kinds=FLEET, parallelism=Parallelism.SINGLE, *, estimated=False, **task):
    found = find_misfits(replace(TASK, **task), parallelism, kinds, Reserve(500, 0.10), estimated=estimated)
    return [(one.field, one.code, one.value, one.params) for one in found]


@pytest.mark.req("SVC-09")
def test_more_memory_than_the_largest_empty_card_has_is_told_with_the_numbers():
    # 46,068 less 500 and a tenth
    free = 46_068 - 500 - 4606
    assert misfits(memory_mb=free) == []
    assert misfits(memory_mb=free + 1) == [
        ("task.estimated_gpu_memory_mb", "memory_nowhere", free + 1, {"wanted_mb": free + 1, "free_mb": free})
    ]
    (told,) = misfits(memory_mb=free + 1, estimated=True)
    assert told[:3] == ("task.model_path", "model_nowhere", None)


@pytest.mark.req("SVC-09")
def test_it_may_be_spread_over_cards_and_must_fit_within_its_promise():
    assert misfits(memory_mb=80_000, gpu_required=2) == []
    assert misfits(memory_mb=20_000, percent=50) == []
    (told,) = misfits(memory_mb=30_000, percent=50)
    assert told[3] == {"wanted_mb": 30_000, "free_mb": 23_034}


@pytest.mark.req("SVC-09")
def test_what_is_not_known_refuses_nothing():
    assert misfits(memory_mb=None) == []
    assert misfits(kinds=set(), memory_mb=10**7) == []  # a tenant without cards waits for them
    assert misfits(kinds={(T4,), (SILENT,)}, memory_mb=40_000) == []
    assert misfits(memory_mb=10**7, gpu_required=0, engine="llamacpp") == []
    assert misfits(gpu_type="H200", memory_mb=100_000) == []  # such cards may come yet


@pytest.mark.req("SVC-09")
def test_only_cards_of_its_type_count():
    assert misfits(gpu_type="T4", memory_mb=13_000) == []
    (told,) = misfits(gpu_type="T4", memory_mb=20_000)
    assert told[3]["free_mb"] == 15_360 - 500 - 1536


@pytest.mark.req("SCHED-05")
def test_a_promise_above_the_largest_there_can_be_is_told_that_one():
    assert Reserve(500, 0.10).limit_percent == 90
    assert misfits(percent=90) == []
    assert misfits(percent=91) == [("gpu_memory_utilization", "promise_too_large", 91, {"max": 90})]
    assert misfits(kinds=set(), percent=91), "no card need be there to know it"


@pytest.mark.req("SCHED-05", "SCHED-07")
def test_a_promise_that_is_ignored_is_not_measured():
    assert misfits(percent=95, gpu_required=2) == []
    assert misfits(percent=95, task_type=TaskType.TRAINING) == []


@pytest.mark.req("SCHED-07", "PAR-01")
def test_more_cards_than_any_node_has_are_told_the_most_there_are():
    two_kinds = {(L20, replace(T4, count=4)), (T4,)}
    assert misfits(kinds=two_kinds, parallelism=Parallelism.TENSOR_PARALLEL, gpu_required=8) == []
    assert misfits(kinds=two_kinds, parallelism=Parallelism.TENSOR_PARALLEL, gpu_required=12) == [
        ("task.gpu_required", "cards_nowhere", 12, {"largest": 8})
    ]
    assert misfits(kinds={(T4,)}, gpu_required=5) == [
        ("task.gpu_required", "cards_nowhere", 5, {"largest": 4})
    ]


@pytest.mark.req("SCHED-13")
def test_a_pipeline_of_one_type_that_nobody_has_is_refused():
    pipeline = Parallelism.PIPELINE_PARALLEL
    assert misfits(parallelism=pipeline, gpu_type="H200") == [
        ("task.gpu_type", "gpu_type_nowhere", "H200", {})
    ]
    assert misfits(kinds=set(), parallelism=pipeline, gpu_type="H200") != []
    assert misfits(parallelism=pipeline, gpu_type="L20", gpu_required=2) == []
    assert misfits(parallelism=pipeline) == []
