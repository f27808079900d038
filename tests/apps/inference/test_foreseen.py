"""A creation is refused where no card of the tenant could ever take it, and says what it can not know
(SVC-09, SCHED-05, SCHED-07, SCHED-13, SCHED-16)."""

from datetime import timedelta

import pytest

from apps.catalog.models import CatalogModel
from apps.workloads.models import Task, TaskGroup
from tests import factories
from tests.apps.inference.bodies import ABSENT
from tests.factories import NOW

pytestmark = pytest.mark.django_db

LARGE = {"task.estimated_gpu_memory_mb": 30_000, "gpu_memory_utilization": ABSENT}


def errors_of(answer):
    assert answer.status_code == 400, answer.content
    assert not TaskGroup.objects.exists()
    return [(e["field"], e["code"], e["value"], e["detail"]) for e in answer.json()["errors"]]


def codes_of(answer):
    return [warning["code"] for warning in answer.json()["warnings"]]


@pytest.mark.req("SVC-09")
def test_the_estimate_is_weights_cache_and_overhead_and_is_kept(post, known_model, settings):
    assert post().status_code == 201
    wanted = round(known_model.size_mb * settings.MODEL_MEMORY_FACTOR) + settings.MODEL_OVERHEAD_MB
    assert Task.objects.get().estimated_gpu_memory_mb == wanted


@pytest.mark.req("SVC-09")
def test_what_was_told_goes_before_what_is_reckoned(post):
    assert post(**{"task.estimated_gpu_memory_mb": 777}).status_code == 201
    assert Task.objects.get().estimated_gpu_memory_mb == 777


@pytest.mark.req("SVC-09")
def test_a_model_of_unknown_size_is_taken_and_said(post, known_model):
    CatalogModel.objects.update(size_mb=None)
    factories.make_node(vram_total_mb=100)
    made = post(gpu_memory_utilization=90)
    assert made.status_code == 201 and codes_of(made) == ["estimate_skipped"]
    assert Task.objects.get().estimated_gpu_memory_mb is None
    assert "estimated_gpu_memory_mb" in made.json()["warnings"][0]["text"]


@pytest.mark.req("SVC-09", "ENG-03")
def test_a_model_inside_of_an_image_is_not_estimated(post):
    made = post(**{"task.engine": "trtllm", "task.command": ["serve"]})
    assert made.status_code == 201 and codes_of(made) == ["estimate_skipped"]


@pytest.mark.req("SVC-09")
def test_what_fits_on_no_card_is_refused_with_the_numbers(post):
    factories.make_node("small", vram_total_mb=24_000)
    ((field, code, value, text),) = errors_of(post(**LARGE))
    assert (field, code, value) == ("task.estimated_gpu_memory_mb", "memory_nowhere", 30_000)
    assert "29.3 GB" in text and "20.6 GB" in text and "small" not in text


@pytest.mark.req("SVC-09", "TEN-09")
def test_only_cards_that_the_tenant_may_use_count(post, tenant):
    factories.make_node("small", vram_total_mb=24_000)
    factories.make_node("theirs", vram_total_mb=81_000, allowed_tenants=[factories.make_tenant()])
    ((_, code, _, text),) = errors_of(post(**LARGE))
    assert code == "memory_nowhere" and "20.6 GB" in text, "the larger one of others is no figure of ours"
    factories.make_node("ours", vram_total_mb=81_000, allowed_tenants=[tenant])
    assert post(**LARGE).status_code == 201


@pytest.mark.req("SVC-09", "SCHED-07")
@pytest.mark.parametrize(
    "changes", [LARGE, {"task.gpu_required": 2, "world_size": 2, "parallelism": "tensor_parallel"}]
)
def test_what_fits_on_a_node_that_is_silent_or_full_waits(post, changes):
    node = factories.make_node(
        "away", vram_total_mb=81_000, cards=2, last_seen_at=NOW - timedelta(hours=9), cordoned=True
    )
    busy = factories.make_task(factories.make_group(factories.make_tenant()), node=node, attempt=1)
    factories.make_claim(busy, node)
    before = TaskGroup.objects.count()
    assert post(**changes).status_code == 201
    assert TaskGroup.objects.count() == before + 1


@pytest.mark.req("SCHED-07", "PAR-01")
def test_more_cards_than_any_node_has_are_refused_with_the_most(post):
    factories.make_node(cards=2, vram_total_mb=81_000)
    answer = post(**{"task.gpu_required": 4, "world_size": 4, "parallelism": "tensor_parallel"})
    ((field, code, value, text),) = errors_of(answer)
    assert (field, code, value) == ("task.gpu_required", "cards_nowhere", 4) and "more than 2" in text


@pytest.mark.req("SCHED-05")
def test_a_promise_above_the_largest_is_refused_with_that_number(post, settings):
    ((field, code, value, text),) = errors_of(post(gpu_memory_utilization=91))
    assert (field, code, value) == ("gpu_memory_utilization", "promise_too_large", 91) and "90 %" in text
    settings.VRAM_RESERVE_RATIO = 0.05
    assert post(gpu_memory_utilization=91).status_code == 201


@pytest.mark.req("SCHED-16")
def test_without_a_port_it_is_said_that_it_is_not_counted(post):
    made = post(
        **{"task.ports": [], "task.model_path": ABSENT, "task.command": ["run"], "health_check": ABSENT},
        task_type="inference",
        enable_api=False,
    )
    assert made.status_code == 201 and codes_of(made) == ["not_counted_on_card"]
