"""Rebuilds on real rows: template chain, other nodes, retries, timeouts, and what is given up."""

from datetime import timedelta

import pytest
from django.utils import translation

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, State, TaskType
from apps.core import leases, texts, ticks
from apps.scheduling.selectors import load_snapshot
from apps.tenants.scope import SYSTEM
from apps.workloads import selectors, services
from apps.workloads.models import Event, Task
from tests import factories
from tests.apps.recovery.conftest import sweep
from tests.apps.workloads.conftest import Life

pytestmark = pytest.mark.django_db(transaction=True)

CHAIN = [
    {"image": "lmsys/sglang:v1", "engine": "sglang", "command": ["launch"]},
    {"image": "llama.cpp:server", "engine": "llamacpp"},
]


def failed(node=None, group=None, code=Code.EXITED, **fields) -> Task:
    return factories.make_task(
        group, **{"state": State.FAILED, "attempt": 1, "node": node, "reason_code": code, **fields}
    )


def fail(task: Task, code: Code, node) -> None:
    """The present attempt ended before it was ready."""
    Task.objects.filter(pk=task.pk).update(state=State.FAILED, reason_code=code, node=node)


@pytest.mark.req("RECOV-03")
def test_the_chain_is_walked_at_no_cost_then_begins_anew_with_a_rebuild_until_all_is_spent(
    now, listening, settings
):
    settings.REBUILD_MAX = 1
    node = factories.make_node()
    group = factories.make_group(inference_templates=CHAIN)
    task = failed(node, group, image="vllm/vllm-openai:v1", engine="vllm", command=["own"])
    seen = []
    for step in range(5):
        fail(task, Code.EXITED, node)
        assert sweep(now + timedelta(seconds=5 * step))["rebuilt"] == 1
        task = Task.objects.select_related("group").get(pk=task.pk)
        runs = selectors.template_of(task)
        seen.append((task.reason_code, runs.image, selectors.engine_of(task), runs.command, task.rebuilds))
    assert seen == [
        (Code.TEMPLATE_NEXT, "lmsys/sglang:v1", "sglang", ("launch",), 0),
        (Code.TEMPLATE_NEXT, "llama.cpp:server", "llamacpp", (), 0),
        (Code.REBUILD, "vllm/vllm-openai:v1", "vllm", ("own",), 1),
        (Code.TEMPLATE_NEXT, "lmsys/sglang:v1", "sglang", ("launch",), 1),
        (Code.TEMPLATE_NEXT, "llama.cpp:server", "llamacpp", (), 1),
    ]
    fail(task, Code.EXITED, node)
    sweep(now + timedelta(seconds=60))
    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.TEMPLATES_SPENT)
    assert task.reason_params["templates"] == 3 and task.reason_params["why"] == Code.EXITED
    assert Event.objects.filter(task=task, code=Code.TEMPLATES_SPENT, to_state="").count() == 1
    assert sweep(now + timedelta(seconds=65))["rebuilt"] == 0  # and is left alone


@pytest.mark.req("RECOV-03")
def test_scheduler_and_agent_get_what_stands_in_the_chain(now, lease):
    life, node = Life(lease), factories.make_node()
    group = factories.make_group(inference_templates=CHAIN)
    task = factories.make_task(group, engine="vllm", command=["own"], template_index=2)
    snapshot = load_snapshot(now)
    assert snapshot is not None
    assert (snapshot.tasks[0].engine, snapshot.tasks[0].has_command) == ("llamacpp", False)

    life.place(task, node)
    spec = life.claim(task, node)
    assert (spec.image, spec.engine, spec.command) == ("llama.cpp:server", "llamacpp", [])


@pytest.mark.req("RECOV-01")
def test_a_node_that_refused_is_passed_over_until_it_ran(now, listening, lease):
    node, other = factories.make_node("a"), factories.make_node("b")
    task = failed(node, code=Code.MODEL_NOT_FOUND_ON_NODE, reason_params={"path": "/m/x"}, ports=[])
    sweep(now)
    task.refresh_from_db()
    assert (task.state, task.reason_code, task.rebuilds) == (State.PENDING, Code.NEXT_NODE, 0)
    assert task.reason_params == {"node": "a", "why": Code.MODEL_NOT_FOUND_ON_NODE, "why_path": "/m/x"}
    inner = texts.say(Code.MODEL_NOT_FOUND_ON_NODE, {"path": "/m/x"})
    assert texts.say(task.reason_code, task.reason_params).endswith(f"What it said: {inner}")

    lease.release()
    assert ticks.run_tick("scheduling.place", now) is not None
    task.refresh_from_db()
    assert task.node == other  # though "a" comes first

    life = Life(lease)
    life.claim(task, other)
    life.report(task, other, Observed.READY)
    assert (task.state, task.node_refusals) == (State.RUNNING, {})


@pytest.mark.req("RECOV-01")
def test_where_no_other_node_is_left_it_fails_at_once_with_words(now, listening):
    mine, strangers = factories.make_tenant(), factories.make_tenant()
    node = factories.make_node()
    factories.make_node(allowed_tenants=[strangers])
    factories.make_node(cordoned=True)
    factories.make_node(cards=0)
    factories.make_node(last_seen_at=now - timedelta(seconds=29), cards=0)
    why = {"path": "/etc/x"}
    task = failed(node, factories.make_group(mine), code=Code.PATH_NOT_ALLOWED, reason_params=why)
    sweep(now)

    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.REFUSED_EVERYWHERE)
    for language in ("en", "zh-hans"):
        with translation.override(language):
            told = texts.say(task.reason_code, task.reason_params)
            assert texts.say(Code.PATH_NOT_ALLOWED, why) in told and "/etc/x" in told
    assert Event.objects.filter(task=task, code=Code.REFUSED_EVERYWHERE).count() == 1
    services.start_again(actor=SYSTEM, tasks=[task], now=now)
    task.refresh_from_db()
    assert (task.state, task.node_refusals, task.template_index) == (State.PENDING, {}, 0)


@pytest.mark.req("RECOV-01")
def test_spent_rebuilds_leave_an_event_once(now, listening, settings):
    settings.REBUILD_MAX = 0
    task = failed(factories.make_node())
    for seconds in (0, 5):
        sweep(now + timedelta(seconds=seconds))
    assert Event.objects.filter(task=task, code=Code.REBUILDS_SPENT).count() == 1


@pytest.mark.req("LIFE-07")
def test_failed_training_is_started_again_as_often_as_the_setting_says(now, listening, settings):
    settings.RUN_RETRIES = 2
    node = factories.make_node()
    task = failed(node, factories.make_group(task_type=TaskType.TRAINING))
    for retry in (1, 2):
        fail(task, Code.EXITED, node)
        sweep(now)
        task.refresh_from_db()
        assert (task.state, task.reason_code, task.rebuilds) == (State.PENDING, Code.RETRY, retry)
        assert task.reason_params == {"retry": retry, "max": 2} and task.not_before > now
    fail(task, Code.EXITED, node)
    assert sweep(now)["rebuilt"] == 0


@pytest.mark.req("LIFE-07")
def test_without_the_setting_failed_training_stays_failed(now, listening):
    failed(factories.make_node(), factories.make_group(task_type=TaskType.CONTAINER))
    assert sweep(now)["rebuilt"] == 0


@pytest.mark.req("LIFE-03")
@pytest.mark.parametrize("kind", [TaskType.CONTAINER, TaskType.TRAINING])
@pytest.mark.parametrize(("timeout", "after_s"), [(None, 86400.0), (60, 60.0)])
def test_what_runs_for_its_whole_timeout_is_stopped_and_failed(
    now, listening, lease, settings, kind, timeout, after_s
):
    settings.RUN_RETRIES = 3  # what had its time is not started again
    life, node = Life(lease), factories.make_node()
    task = factories.make_task(factories.make_group(task_type=kind), timeout_seconds=timeout)
    life.run(task, node)
    assert task.deadline_at == now + timedelta(seconds=after_s)
    assert expire(lease, now + timedelta(seconds=after_s)) == 0
    assert expire(lease, now + timedelta(seconds=after_s + 1)) == 1

    task.refresh_from_db()
    assert (task.state, task.reason_code, task.reason_params) == (
        State.FAILED,
        Code.RUN_TIMEOUT,
        {"after_s": after_s},
    )
    assert [wanted.desired for wanted in selectors.desired_of(node)] == [Desired.STOP]
    life.report(task, node, Observed.EXITED, exit_code=137)
    assert (task.state, task.reason_code) == (State.FAILED, Code.RUN_TIMEOUT)
    assert services.rebuild_failed(lease=lease, now=now) == 0


@pytest.mark.req("LIFE-03")
def test_inference_has_no_run_timeout(now, lease):
    task = factories.make_task(timeout_seconds=60)
    Life(lease).run(task, factories.make_node())
    assert task.deadline_at is None
    assert expire(lease, now + timedelta(days=365)) == 0


def expire(lease: leases.Held, now) -> int:
    return services.expire_deadlines(lease=lease, now=now)


@pytest.fixture
def lease(db: None) -> leases.Held:
    held = leases.acquire("scheduling.place", "test", 60)
    assert held is not None
    return held
