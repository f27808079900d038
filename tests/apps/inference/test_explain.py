"""Why a service is in its state, told to whoever asks and about nobody else (SVC-14)."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from agent.contract.states import State
from apps.core import texts
from apps.inference.api.explaining import ExplainedTaskShape, ExplanationShape, NodeWordShape
from apps.inference.explain import explain
from apps.inference.policy.explaining import ADVICE
from apps.scheduling.policy.registry import load_filters
from apps.streams.services import append_log
from apps.tenants.models import TenantStatus
from apps.tenants.scope import viewer_of
from apps.workloads.models import TaskGroup
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-14")]

AT = NOW + timedelta(seconds=60)


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def group(tenant, member):
    return factories.make_group(tenant, member)


def told(user, group, now=NOW):
    found = explain(viewer_of(user), group, now=now)
    json.dumps(found, default=str)
    return found


def only(user, group, now=NOW):
    (task,) = told(user, group, now)["tasks"]
    return task


def words(task):
    return {word["node"]: (word["reason"]["code"], word["reason"]["params"]) for word in task["nodes"]}


def test_each_node_says_its_first_refusal_with_numbers(member, group, tenant):
    other = factories.make_tenant()
    factories.make_node("off", last_seen_at=NOW - timedelta(hours=1))
    factories.make_node("closed", cordoned=True)
    factories.make_node("amd", card_model="MI300X", vendor="amd")
    factories.make_node("small", vram_total_mb=4000)
    factories.make_node("theirs", allowed_tenants=[other])
    factories.make_node("fits", vram_total_mb=90000)
    taken = factories.make_node("taken")
    busy = factories.make_task(factories.make_group(other), state=State.RUNNING, node=taken, attempt=1)
    factories.make_claim(busy, taken)
    factories.make_task(group, gpu_type="RTX 4090", estimated_gpu_memory_mb=20000)
    task = only(member, group)
    assert words(task) == {
        "off": ("node_offline", {}),
        "closed": ("node_cordoned", {}),
        "amd": ("gpu_type_mismatch", {"wanted": "RTX 4090"}),
        "small": (
            "vram_short",
            {"wanted_mb": 20000, "free_mb": 3100, "short_mb": 16900, "node": "small", "card": 0},
        ),
        "taken": ("cards_short", {"wanted": 1, "free": 0}),
        "fits": ("fits", {}),
    }
    names = [word["node"] for word in task["nodes"]]
    assert names[0] == "fits" and set(names[1:3]) == {"small", "taken"}  # the nearest misses come first
    assert task["awaited"] == {"code": "await_place", "text": texts.say("await_place"), "until": None}
    advice = [tip["code"] for tip in task["advice"]]
    assert {"try_less_memory", "try_fewer_cards", "try_start_agent", "try_uncordon"} <= set(advice)
    said = json.dumps(told(member, group), default=str)
    for secret in ("theirs", other.slug, other.public_id, busy.name, busy.public_id, busy.group.name):
        assert secret not in said


def test_a_red_line_is_told_without_whose_it_is(member, group, tenant):
    other, node = factories.make_tenant(), factories.make_node("shared")
    theirs = factories.make_task(factories.make_group(other, gpu_memory_utilization=10), node=node, attempt=1)
    factories.make_claim(theirs, node, percent=10)
    group.gpu_memory_utilization = 20
    group.save()
    factories.make_task(group)
    assert words(only(member, group)) == {"shared": ("red_line", {})}


def test_an_operator_sees_every_node(operator, group):
    factories.make_node("theirs", allowed_tenants=[factories.make_tenant()])
    factories.make_task(group)
    assert words(only(operator, group)) == {"theirs": ("node_not_allowed", {})}


def test_many_nodes_and_many_replicas_cost_no_more_statements(member, group, settings):
    for _ in range(3):
        factories.make_node(last_seen_at=None)
    factories.make_task(group)

    def count():
        with CaptureQueriesContext(
            connection,
        ) as seen:
            told(member, TaskGroup.objects.get(pk=group.pk))
        return len(seen)

    one = count()
    for _ in range(60):
        factories.make_node(last_seen_at=None)
    for _ in range(5):
        factories.make_task(group)
    assert count() == one
    task = told(member, group)["tasks"][0]
    assert len(task["nodes"]) == 50 and task["nodes_left_out"] == 13


@pytest.mark.parametrize(
    ("fields", "code", "until"),
    [
        ({"state": "pending"}, "await_place", None),
        ({"state": "pending", "not_before": AT}, "await_retry", AT),
        ({"state": "pending", "not_before": NOW - timedelta(seconds=1)}, "await_place", None),
        ({"state": "scheduling", "phase": "placed", "deadline_at": AT}, "await_claim", AT),
        ({"state": "scheduling", "phase": "pulling", "deadline_at": AT}, "await_image", AT),
        ({"state": "scheduling", "phase": "loading", "deadline_at": AT}, "await_ready", AT),
        ({"state": "running", "phase": "ready"}, None, None),
        ({"state": "running", "phase": "unhealthy"}, "await_ready_again", None),
        ({"state": "draining", "deadline_at": AT}, "await_drained_then_sleep", AT),
        ({"state": "draining", "desired": "stop", "deadline_at": AT}, "await_drained_then_stop", AT),
        ({"state": "sleeping", "desired": "sleep"}, "await_wake_call", None),
        ({"state": "sleeping", "desired": "run"}, "await_wake_possible", None),
        ({"state": "waking", "deadline_at": AT}, "await_ready", AT),
        ({"state": "stopping", "desired": "stop", "deadline_at": AT}, "await_gone", AT),
        ({"state": "failed"}, "await_rebuild", None),
        ({"state": "failed", "reason_code": "rebuilds_spent"}, None, None),
        ({"state": "failed", "desired": "stop"}, None, None),
        ({"state": "stopped", "desired": "stop"}, None, None),
        ({"state": "completed"}, None, None),
    ],
)
def test_what_is_awaited_and_until_when(member, group, fields, code, until):
    factories.make_task(group, **fields)
    group.state = fields["state"]
    group.save()
    whole = told(member, group)
    awaited = whole["tasks"][0]["awaited"]
    assert whole["awaited"] == awaited
    found = (awaited["code"], awaited["until"]) if awaited else (None, None)
    assert found == (code, until)


@pytest.mark.parametrize(
    ("state", "desired", "advice"),
    [
        ("sleeping", "sleep", ["try_wake"]),
        ("sleeping", "run", []),
        ("stopped", "stop", ["try_start"]),
        ("running", "run", []),
        ("completed", "run", []),
    ],
)
def test_what_rests_says_how_to_go_on(member, group, state, desired, advice):
    factories.make_task(group, state=state, desired=desired, phase="ready" if state == "running" else "")
    assert [tip["code"] for tip in only(member, group)["advice"]] == advice


def test_a_replica_that_was_scaled_away_is_no_advice_to_a_service_that_serves(member, group):
    factories.make_task(group, state="stopped", desired="stop", reason_code="scaled_in")
    assert [tip["code"] for tip in told(member, group)["advice"]] == ["try_start"]
    factories.make_task(group, state="running", phase="ready", rank=1)
    assert told(member, TaskGroup.objects.get(pk=group.pk))["advice"] == []


def test_a_failed_one_tells_its_last_error_its_log_and_what_to_try(member, group):
    error = {"code": "out_of_memory", "params": {}, "exit_code": 137, "log_lines": ["CUDA error"], "at": ""}
    factories.make_task(group, state="failed", reason_code="rebuilds_spent", last_error=error)
    task = only(member, group)
    assert task["last_error"]["text"] == "The kernel ended it: out of memory."
    assert task["log_lines"] == ["CUDA error"]
    assert [tip["code"] for tip in task["advice"]] == ["try_less_memory", "try_start"]


def test_a_starting_one_shows_the_end_of_its_log(member, group):
    task = factories.make_task(group, state="scheduling", phase="loading", attempt=1)
    lines = "".join(f"line {n}\n" for n in range(100))
    append_log(task=task, attempt=1, offset=0, text=lines, now=NOW)
    assert only(member, group)["log_lines"] == [f"line {n}" for n in range(80, 100)]


def test_a_suspended_tenant_is_told_whom_to_ask(member, group, tenant):
    tenant.status, tenant.suspended_reason = TenantStatus.SUSPENDED, "unpaid"
    tenant.save()
    factories.make_task(group, reason_code="tenant_suspended", reason_params={"why": "unpaid"})
    task = only(member, group)
    assert task["awaited"]["code"] == "await_resumed"
    assert "try_ask_operator" in [tip["code"] for tip in task["advice"]]


def test_the_answer_has_its_shape_and_speaks_both_languages(api_client, member, group):
    factories.make_node("off", last_seen_at=None)
    factories.make_task(group)
    client, address = api_client(member), f"/api/v1/task-groups/{group.public_id}/explain"
    answer = client.get(address).json()
    assert set(answer) == set(ExplanationShape().fields)
    assert set(answer["tasks"][0]) == set(ExplainedTaskShape().fields)
    assert set(answer["tasks"][0]["nodes"][0]) == set(NodeWordShape().fields)
    assert answer["tasks"][0]["nodes"][0]["reason"]["text"] == "It is offline."
    with translation.override("en"):
        chinese = client.get(address, headers={"Accept-Language": "zh-Hans"}).json()
    assert chinese["tasks"][0]["nodes"][0]["reason"]["text"] == "离线。"
    assert chinese["awaited"]["code"] == answer["awaited"]["code"]


def test_every_advice_and_every_filters_word_has_a_sentence():
    assert {code for code in ADVICE.values() if code not in texts.TEXTS} == set()
    sources = [plugin.fits.__code__.co_filename for plugin in load_filters()]
    codes = {code for name in sources for code in re.findall(r"Code\.([A-Z_]+)", Path(name).read_text())}
    assert codes and {code for code in codes if f"here_{code.lower()}" not in texts.TEXTS} == set()
