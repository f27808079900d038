"""Routes that have lost every backend become alerts, once, and end with the loss (OPS-09, GW-08)."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from agent.contract.states import Desired, Phase, State
from apps.alerts.models import Alert
from apps.core import leases
from apps.core.models import TickRun
from apps.ops import loop
from apps.routing import gateways
from apps.routing.load import BackendWord, Load, TenantWord
from apps.routing.models import ExternalEngine, ModelRoute
from apps.tenants.models import Tenant
from apps.workloads.models import Task
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09", "GW-08")]
LONG_AGO = NOW - timedelta(hours=1)


def watch(after_s: float, *, forgets: bool = False) -> set[tuple[str, str]]:
    """One run of the loop so long after NOW, which goes by its last one; the open alerts then."""
    now = NOW + timedelta(seconds=after_s)
    held = leases.acquire(loop.NAME, "test", 30)
    assert held is not None
    row = TickRun.objects.filter(name=loop.NAME).first()
    detail: dict[str, Any] = {} if row is None or forgets else row.detail
    detail["looking_since"] = LONG_AGO.isoformat()
    # As if it had run without a gap.
    values = {"started_at": now, "finished_at": now, "detail": detail}
    TickRun.objects.update_or_create(name=loop.NAME, defaults=values)
    try:
        TickRun.objects.filter(name=loop.NAME).update(detail=loop.watch(held, now))
    finally:
        held.release()
    rows = Alert.objects.filter(code="route_unserved", closed_at__isnull=True)
    return {(row.object_id, row.params["reason"]) for row in rows}


@pytest.fixture(autouse=True)
def soon(settings: Any) -> None:
    settings.ALERT_ROUTE_UNSERVED_S, settings.LOAD_FRESH_S = 60.0, 3600.0


def serving(**fields: Any) -> tuple[ModelRoute, Task]:
    values = {"state": State.RUNNING, "phase": Phase.READY, "attempt": 1, **fields}
    task = factories.make_task(node=factories.make_node(), **values)
    route = ModelRoute.objects.create(tenant=task.group.tenant, group=task.group, model_name="tiny")
    return route, task


def become(task: Task, **values: Any) -> None:
    Task.objects.filter(pk=task.pk).update(**values)


def test_a_loss_that_lasts_is_told_once_until_it_is_over() -> None:
    route, task = serving()
    other, _ = serving()
    assert watch(0) == set()
    become(task, state=State.FAILED)
    assert watch(10) == set()
    become(task, state=State.PENDING, attempt=2)
    assert watch(69) == set(), "it was found 59 s ago"
    assert watch(70) == {(route.public_id, "gone")}
    watch(80)
    assert watch(90, forgets=True) == {(route.public_id, "gone")}
    alert = Alert.objects.get(code="route_unserved")
    assert (alert.params["tenant"], alert.params["backends"]) == (route.tenant.slug, 1)
    become(task, state=State.RUNNING, phase=Phase.READY)
    assert watch(100) == set()
    assert Alert.objects.filter(code="route_unserved").count() == 1
    become(task, phase=Phase.UNHEALTHY)
    assert watch(110) == set() and watch(169) == set(), "another loss has its own time"
    assert watch(170) == {(route.public_id, "gone")}
    ModelRoute.objects.filter(pk=route.pk).update(active=False)
    assert watch(180) == set()
    assert other.public_id not in Alert.objects.values_list("object_id", flat=True)


@pytest.mark.parametrize(
    "values",
    [
        {"state": State.SCHEDULING, "phase": Phase.LOADING},  # for the first time
        {"state": State.PENDING, "attempt": 0},
        {"state": State.SLEEPING, "desired": Desired.SLEEP},
        {"state": State.WAKING, "attempt": 2},
        {"state": State.STOPPED, "desired": Desired.STOP, "attempt": 2},
        {"state": State.FAILED, "desired": Desired.STOP, "attempt": 2},
    ],
)
def test_what_was_wanted_so_is_no_loss(values: dict[str, Any]) -> None:
    serving(**values)
    assert watch(0) == set() and watch(120) == set()


def test_one_of_two_replicas_serves() -> None:
    _, task = serving()
    factories.make_task(task.group, rank=1, state=State.FAILED)
    assert watch(0) == set() and watch(120) == set()


def say(name: str, task_id: str, state: str, tenant: Tenant, at: datetime = NOW) -> None:
    met = {tenant.public_id: TenantWord(state, 3, "refused")}
    word = BackendWord(state=state, failures=3, last_failure="refused", tenants=met)
    gateways.say(name, Load(backends={task_id: word}), at)


def test_what_no_gateway_reaches_is_lost_too() -> None:
    route, task = serving()
    tenant = route.tenant
    say("a", task.public_id, "open", tenant)
    say("b", task.public_id, "passed_over", tenant)
    assert watch(0) == set() and watch(70) == set(), "one process reaches it"
    say("b", task.public_id, "open", tenant)
    assert watch(80) == set()
    assert watch(140) == {(route.public_id, "unreachable")}
    second = factories.make_task(task.group, rank=1, state=State.RUNNING, phase=Phase.READY, attempt=1)
    assert watch(150) == set()
    say("a", second.public_id, "open", tenant)
    say("b", second.public_id, "half_open", tenant)
    assert watch(160) == set() and watch(300) == set()


def test_of_a_shared_engine_each_tenants_own_circuit_counts() -> None:
    engine = ExternalEngine.objects.create(name="far", url="https://far.example")
    mine, _theirs = (
        ModelRoute.objects.create(tenant=factories.make_tenant(), external=engine, model_name="tiny")
        for _ in range(2)
    )
    say("a", engine.public_id, "open", mine.tenant)
    watch(0)
    assert watch(60) == {(mine.public_id, "unreachable")}
