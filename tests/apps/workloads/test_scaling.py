"""Scaling by hand: who leaves and how, what is counted, whose the new ones are."""

import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, State, TaskType
from apps.core.errors import Conflict, Invalid, NotFound, Refusal
from apps.tenants.models import Tenant, TenantStatus
from apps.workloads import selectors, services
from apps.workloads.models import Event, Task, TaskGroup
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_member, make_node, make_task, make_tenant

pytestmark = pytest.mark.django_db


def scale(group: TaskGroup, replicas: int) -> services.Act:
    return services.set_replicas(by="ann", group=group, replicas=replicas, now=NOW)


def states(group: TaskGroup) -> list[str]:
    return list(group.tasks.order_by("rank").values_list("state", flat=True))


@pytest.mark.req("LIFE-04", "TEN-02")
def test_what_is_added_is_like_the_first_and_belongs_to_the_creator() -> None:
    creator = make_member()
    group = make_group(creator.memberships.get().tenant, creator, max_replicas=3, min_replicas=0)
    make_task(group, env={"A": "1"}, volumes=["/data:/data"], name=group.name)
    act = scale(group, 3)
    assert (act.did, act.why.code, act.next.params) == (
        "scaled",
        "scaled_out",
        {"coming": 2, "leaving": 0},
    )
    assert states(group) == ["pending"] * 3
    added = group.tasks.get(rank=2)
    assert (added.env, added.volumes, added.name) == ({"A": "1"}, ["/data:/data"], f"{group.name}-2")
    assert added.group.created_by == creator and added.attempt == 0
    assert Event.objects.get(task=added).actor == "ann"
    assert scale(group, 3).did == "nothing" and group.tasks.count() == 3


@pytest.mark.req("LIFE-04")
def test_what_leaves_ends_its_calls_first_and_comes_back_before_a_new_one_is_made(life: Life) -> None:
    node = make_node(cards=2)
    group = make_group(max_replicas=4)
    first, second = make_task(group, gpu_required=0), make_task(group, gpu_required=0)
    third = make_task(group, gpu_required=0)
    life.run(first, node, port=20001)
    life.run(second, node, port=20002)
    act = scale(group, 1)
    assert (act.why.code, act.next.params) == ("scaled_in", {"coming": 0, "leaving": 2})
    assert states(group) == [State.RUNNING, State.DRAINING, State.STOPPED]
    second.refresh_from_db()
    assert (second.desired, second.reason_code) == (Desired.STOP, Code.SCALED_IN)
    assert [replica.task_id for replica in selectors.ready_replicas()] == [first.public_id]
    assert {wanted.desired for wanted in selectors.desired_of(node)} == {Desired.RUN}  # its calls run on
    late = NOW + timedelta(seconds=settings.DRAIN_DEADLINE_S + 1)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    assert states(group) == [State.RUNNING, State.STOPPING, State.STOPPED]
    life.report(second, node, Observed.GONE)
    assert scale(group, 3).next.params == {"coming": 2, "leaving": 0}
    third.refresh_from_db()
    assert states(group) == [State.RUNNING, State.PENDING, State.PENDING] and third.desired == Desired.RUN


@pytest.mark.req("LIFE-04", "SCALE-06")
def test_to_none_leaves_one_asleep_and_from_none_it_is_woken(life: Life) -> None:
    node = make_node()
    group = make_group(max_replicas=2, min_replicas=0)
    task = life.run(make_task(group), node)
    scale(group, 0)
    assert states(group) == [State.DRAINING] and scale(group, 0).did == "nothing"
    life.report(task, node, Observed.ASLEEP)
    assert scale(group, 0).did == "nothing"
    assert scale(group, 1).next.params == {"coming": 1, "leaving": 0}
    assert states(group) == [State.WAKING]


@pytest.mark.req("LIFE-04", "SLEEP-01")
def test_one_that_falls_asleep_and_has_to_go_ends_its_calls_and_stops(life: Life) -> None:
    node = make_node(cards=2)
    group = make_group(max_replicas=2)
    kept, falling = make_task(group, gpu_required=0), make_task(group, gpu_required=0)
    life.run(kept, node, port=20001)
    life.run(falling, node, port=20002)
    services.request_sleep(by="ann", task=falling, now=NOW)
    scale(group, 1)
    falling.refresh_from_db()
    assert (falling.state, falling.desired) == (State.DRAINING, Desired.STOP)
    assert life.report(falling, node, Observed.ASLEEP).state == State.DRAINING  # it slept before it heard
    late = NOW + timedelta(seconds=settings.SLEEP_DRAIN_S + settings.STOP_DEADLINE_S + 1)
    services.expire_deadlines(lease=life.lease, now=late)
    assert life.report(falling, node, Observed.GONE).state == State.STOPPED


@pytest.mark.req("LIFE-04")
@pytest.mark.parametrize(
    ("replicas", "code", "params"),
    [(4, "above_max_replicas", {"max": 3}), (0, "below_min_replicas", {"min": 1})],
)
def test_outside_of_its_bounds_nothing_moves(replicas: int, code: str, params: dict[str, int]) -> None:
    group = make_group(max_replicas=3, min_replicas=1)
    make_task(group)
    with pytest.raises(Invalid) as caught:
        scale(group, replicas)
    error = caught.value.errors[0]
    assert (error.field, error.code, error.value, error.params) == ("replicas", code, replicas, params)


@pytest.mark.req("LIFE-04")
def test_training_is_not_scaled() -> None:
    group = make_group(task_type=TaskType.TRAINING, max_replicas=3)
    make_task(group)
    with pytest.raises(Conflict) as caught:
        scale(group, 2)
    assert caught.value.code == "scales_not"


@pytest.mark.req("TEN-01")
def test_a_suspended_tenant_gives_up_replicas_and_gets_none() -> None:
    group = make_group(max_replicas=3, min_replicas=0)
    make_task(group), make_task(group)
    Tenant.objects.filter(pk=group.tenant_id).update(status=TenantStatus.SUSPENDED)
    with pytest.raises(Refusal) as caught:
        scale(TaskGroup.objects.get(pk=group.pk), 3)
    assert caught.value.code == "tenant_suspended" and states(group) == ["pending"] * 2
    scale(group, 1)
    assert states(group) == ["pending", "stopped"]


@pytest.mark.req("TEN-07")
@pytest.mark.parametrize("quota", [{"replicas": 2}, {"gpus": 4}])
def test_what_is_added_or_started_again_is_counted(quota: dict[str, int]) -> None:
    group = make_group(make_tenant(quota=quota), max_replicas=5, min_replicas=0)
    make_task(group, gpu_required=2)
    make_task(group, gpu_required=2, state=State.STOPPED, desired=Desired.STOP)
    with pytest.raises(Refusal) as caught:
        scale(group, 3)
    assert caught.value.code == "quota_exceeded" and states(group) == ["pending", "stopped"]
    scale(group, 2)
    assert states(group) == ["pending", "pending"]


@pytest.mark.req("LIFE-09", "LIFE-04")
def test_a_pair_counts_as_one_and_what_a_drain_took_out_as_none(life: Life) -> None:
    group = make_group(max_replicas=2)
    old = life.run(make_task(group), make_node())
    make_task(group, replaces=old)
    make_task(group, retired_at=NOW, state=State.DRAINING, desired=Desired.STOP)
    assert scale(group, 1).did == "nothing"
    scale(group, 2)
    assert group.tasks.filter(replaces__isnull=True, retired_at__isnull=True).count() == 2


@pytest.mark.req("LIFE-04", "RECOV-03")
def test_what_nodes_refused_once_holds_neither_for_one_started_again_nor_for_a_new_one() -> None:
    group = make_group(max_replicas=2, min_replicas=0)
    old = {"node_refusals": {"node-x": Code.MODEL_NOT_FOUND_ON_NODE}, "template_index": 2}
    again = make_task(group, state=State.STOPPED, desired=Desired.STOP, **old)
    scale(group, 1)
    again.refresh_from_db()
    assert (again.state, again.node_refusals, again.template_index) == (State.PENDING, {}, 0)
    Task.objects.update(**old)
    scale(group, 2)
    assert group.tasks.get(rank=1).node_refusals == {}


@pytest.mark.req("LIFE-04")
def test_a_service_that_is_gone_meanwhile_is_not_found() -> None:
    group = make_group(max_replicas=2)
    TaskGroup.objects.filter(pk=group.pk).delete()
    with pytest.raises(NotFound):
        scale(group, 2)


@pytest.mark.req("TEN-07", "LIFE-04")
@pytest.mark.django_db(transaction=True)
def test_many_scalings_at_once_never_pass_the_quota() -> None:
    tenant = make_tenant(quota={"replicas": 9})
    groups = [make_group(tenant, max_replicas=4) for _ in range(6)]
    for group in groups:
        make_task(group)
    outcomes: Counter[str] = Counter()
    gate, counting = threading.Barrier(12), threading.Lock()

    def go(group: TaskGroup) -> None:
        try:
            gate.wait(timeout=60)
            outcome = str(scale(group, 4).did)
        except Refusal as refusal:
            outcome = refusal.code
        except Exception as error:
            outcome = repr(error)
        finally:
            connection.close()
        with counting:
            outcomes[outcome] += 1

    threads = [threading.Thread(target=go, args=(group,)) for group in groups * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert Task.objects.count() == 9 and outcomes["scaled"] == 1  # 6 + 3; the next 3 do not fit
    assert outcomes == {"scaled": 1, "nothing": 1, "quota_exceeded": 10}


@pytest.mark.req("LIFE-05")
def test_a_service_that_failed_waits_as_soon_as_one_is_added() -> None:
    group = make_group(state=State.FAILED, min_replicas=1, max_replicas=2)
    make_task(group, state=State.FAILED, reason_code=Code.REBUILDS_SPENT)
    scale(group, 2)
    group.refresh_from_db()
    assert (group.state, states(group)) == (State.PENDING, ["failed", "pending"])
