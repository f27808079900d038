"""A task's life by services: placed, claimed, ready, stopped, deleted; nothing freed too early."""

from datetime import timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import RunningReport, TaskSpec
from agent.contract.states import Desired, Observed, Phase, State
from apps.core import versions
from apps.core.errors import Refusal
from apps.fleet.models import Liveness, Port
from apps.tenants.models import Tenant, TenantStatus
from apps.tenants.scope import SYSTEM
from apps.workloads import selectors, services
from apps.workloads.models import Claim, Event, TaskGroup
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_node, make_task, make_tenant

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(seconds=1)


def live_claims() -> int:
    return Claim.objects.filter(released_at__isnull=True).count()


@pytest.mark.req("LIFE-01", "LIFE-05", "LIFE-08")
def test_from_pending_to_ready_with_an_event_for_each_move(life: Life) -> None:
    node, task = make_node(), make_task()
    before = versions.read()
    assert life.place(task, node).phase == Phase.PLACED
    assert task.attempt == 1 and task.state == State.SCHEDULING
    spec = life.claim(task, node)
    assert isinstance(spec, TaskSpec) and spec.attempt == 1 and spec.served_model_name == "tiny-model"
    assert spec.ports[0].host_port == 20001 and spec.engine == "llamacpp" and spec.engine_key
    assert life.report(task, node, Observed.STARTING, Phase.LOADING).state == State.SCHEDULING
    assert selectors.ready_replicas() == []
    assert life.report(task, node, Observed.READY, Phase.READY).state == State.RUNNING
    assert [replica.port for replica in selectors.ready_replicas()] == [20001]
    assert versions.read() > before
    task.group.refresh_from_db()
    assert task.group.state == State.RUNNING
    moves = list(Event.objects.filter(task=task).values_list("from_state", "to_state", "code"))
    assert moves == [("pending", "scheduling", "placed"), ("scheduling", "running", "ready")]


@pytest.mark.req("AGENT-02", "LIFE-08")
def test_a_claim_is_one_runs_alone_and_a_repeat_gets_the_same_answer(life: Life) -> None:
    node, other, task = make_node(), make_node(), make_task()
    life.place(task, node)
    assert life.claim(task, other) == reason(Code.CLAIM_UNKNOWN)
    assert life.claim(task, node, "run-0") == reason(Code.CLAIM_SUPERSEDED)
    first = life.claim(task, node)
    assert isinstance(first, TaskSpec) and life.claim(task, node) == first
    Liveness.objects.filter(node=node).update(incarnation="run-2")
    again = life.claim(task, node, "run-2")
    assert isinstance(again, Reason) and again.code == Code.CLAIM_LOST


@pytest.mark.req("SVC-12", "LIFE-01")
def test_stop_keeps_card_and_port_until_the_node_confirms(life: Life) -> None:
    node, task = make_node(), make_task()
    life.run(task, node)
    for moved in (1, 0):  # a repeat is harmless and says so
        outcome = services.request_stop(
            actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=LATER
        )
        assert outcome.moved == moved
    task.refresh_from_db()
    assert task.state == State.STOPPING and live_claims() == 1 and Port.objects.count() == 1
    assert selectors.ready_replicas() == []
    assert [wanted.desired for wanted in selectors.desired_of(node)] == [Desired.STOP]
    assert life.report(task, node, Observed.GONE).state == State.STOPPED
    assert live_claims() == 0 and Port.objects.count() == 0 and selectors.desired_of(node) == []


@pytest.mark.req("LIFE-01")
@pytest.mark.parametrize("state", [State.PENDING, State.FAILED])
def test_stop_of_what_exists_nowhere_is_done_at_once(state: State) -> None:
    task = make_task(state=state)
    services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=NOW)
    task.refresh_from_db()
    assert task.state == State.STOPPED and task.desired == Desired.STOP


@pytest.mark.req("LIFE-01", "SVC-12")
def test_stop_of_a_placed_task_that_no_agent_took_on_is_done_at_once(life: Life) -> None:
    node, task = make_node(), make_task()
    life.place(task, node)
    services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=NOW)
    task.refresh_from_db()
    assert task.state == State.STOPPED and live_claims() == 0 and Port.objects.count() == 0
    assert life.claim(task, node) == reason(Code.CLAIM_LOST)


@pytest.mark.req("SVC-12")
def test_a_deleted_group_is_hidden_at_once_and_gone_when_its_node_confirmed(life: Life) -> None:
    node, task = make_node(), make_task()
    life.run(task, node)
    services.request_delete(actor=SYSTEM, group=task.group, now=LATER)
    assert not selectors.groups(SYSTEM).exists()
    assert services.finish_deleted(lease=life.lease, now=LATER) == []
    life.report(task, node, Observed.EXITED, exit_code=0)
    assert services.finish_deleted(lease=life.lease, now=LATER) == [task.public_id]
    assert not TaskGroup.objects.exists() and services.finish_deleted(lease=life.lease, now=LATER) == []


@pytest.mark.req("AGENT-02")
def test_late_repeated_and_foreign_reports_change_nothing(life: Life) -> None:
    node, other, task = make_node(), make_node(), make_task()
    life.run(task, node)
    life.report(task, node, Observed.GONE, sequence=1)  # older than what was applied
    life.report(task, other, Observed.GONE, sequence=99)  # not its node
    life.report(task, node, Observed.GONE, attempt=7)  # not its attempt
    assert task.state == State.RUNNING and live_claims() == 1


@pytest.mark.req("RECOV-01", "LIFE-08")
def test_a_failed_task_is_rebuilt_until_rebuilds_are_spent(life: Life) -> None:
    node, task = make_node(), make_task()
    now = NOW
    for rebuild in range(1, settings.REBUILD_MAX + 1):
        life.run(task, node)
        life.report(task, node, Observed.EXITED, exit_code=1, last_log_lines=["boom sk-" + "a" * 36])
        assert task.state == State.FAILED and task.last_error["exit_code"] == 1
        assert "a" * 12 not in str(task.last_error)
        assert services.rebuild_failed(lease=life.lease, now=now) == 1
        task.refresh_from_db()
        assert task.state == State.PENDING and task.rebuilds == rebuild
        assert task.not_before is not None and task.not_before > now
    life.run(task, node)
    life.report(task, node, Observed.EXITED, exit_code=1)
    services.rebuild_failed(lease=life.lease, now=now)
    task.refresh_from_db()
    assert task.state == State.FAILED and task.reason_code == Code.REBUILDS_SPENT
    assert services.rebuild_failed(lease=life.lease, now=now) == 0
    assert services.start_again(actor=SYSTEM, tasks=[task], now=now) == 1


@pytest.mark.req("AGENT-09")
def test_an_attempt_that_its_node_does_not_list_is_over(life: Life) -> None:
    node, task = make_node(), make_task()
    life.run(task, node)
    listed = [RunningReport(task.public_id, task.attempt, Observed.READY)]
    much_later = NOW + timedelta(seconds=settings.RECONCILE_GRACE_S + 1)
    assert services.reconcile_node(node=node, running=[], now=LATER) == 0  # the list may be older
    assert services.reconcile_node(node=node, running=listed, now=much_later) == 0
    assert services.reconcile_node(node=node, running=[], now=much_later) == 1
    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.PENDING, Code.CONTAINER_GONE)
    assert live_claims() == 0 and task.rebuilds == 1


@pytest.mark.req("AGENT-03", "AGENT-02")
def test_a_new_run_of_the_agent_ends_or_adopts_what_its_predecessor_ran(life: Life) -> None:
    node = make_node(cards=2)
    kept, lost = make_task(), make_task()
    life.run(kept, node, port=20001)
    cards = tuple(node.cards.values_list("pk", flat=True)[1:])
    placement = services.Placement(lost.pk, lost.version, node.pk, cards, None, ((8000, 20002),))
    services.commit_placements(lease=life.lease, placements=[placement], now=NOW)
    lost.refresh_from_db()
    life.claim(lost, node)
    Liveness.objects.filter(node=node).update(incarnation="run-2", report_sequence=0)
    listed = [RunningReport(kept.public_id, kept.attempt, Observed.READY)]
    assert services.reconcile_node(node=node, running=listed, now=LATER) == 1
    kept.refresh_from_db(), lost.refresh_from_db()
    assert kept.state == State.RUNNING and kept.claims.get().incarnation == "run-2"
    assert (lost.state, lost.reason_code) == (State.PENDING, Code.AGENT_RESTARTED)
    assert lost.rebuilds == 0  # no fault of the task


@pytest.mark.req("AGENT-03")
def test_an_agent_that_goes_down_in_good_order_costs_no_rebuild(life: Life) -> None:
    node, task = make_node(), make_task()
    for _ in range(settings.REBUILD_MAX + 2):
        life.run(task, node)
        life.report(task, node, Observed.EXITED, exit_code=0, reason=reason(Code.AGENT_RESTARTED))
        assert (task.state, task.rebuilds, task.node) == (State.PENDING, 0, None)
    assert live_claims() == 0


@pytest.mark.req("RECOV-02")
def test_work_of_a_lost_node_moves_and_its_old_container_keeps_its_card(life: Life) -> None:
    node, other, task = make_node(), make_node(), make_task()
    life.run(task, node)
    assert services.lose_nodes(lease=life.lease, node_ids=[node.pk], now=LATER) == 1
    task.refresh_from_db()
    assert (task.state, task.reason_code, task.node) == (State.PENDING, Code.NODE_LOST, None)
    assert live_claims() == 1 and [d.desired for d in selectors.desired_of(node)] == [Desired.STOP]
    assert life.place(task, other, port=20002).attempt == 2
    life.report(task, node, Observed.GONE, attempt=1)  # the old node is back and removed it
    assert task.state == State.SCHEDULING and live_claims() == 1
    assert list(Port.objects.values_list("node", "number")) == [(other.pk, 20002)]


@pytest.mark.req("LIFE-01")
def test_waits_end_at_their_deadline_with_the_cause(life: Life) -> None:
    node, slow, idle = make_node(cards=2), make_task(), make_task(gpu_required=0)
    life.place(slow, node, port=20001)
    life.claim(slow, node)
    life.place(idle, node, port=20002)
    late = NOW + timedelta(seconds=settings.CLAIM_DEADLINE_S + 1)
    Liveness.objects.update(last_seen_at=late)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    idle.refresh_from_db()
    assert (idle.state, idle.reason_code) == (State.FAILED, Code.START_TIMEOUT) and live_claims() == 1
    late = NOW + timedelta(seconds=settings.START_DEADLINE_S + 1)
    Liveness.objects.update(last_seen_at=late)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    slow.refresh_from_db()
    assert (slow.state, slow.reason_code) == (State.FAILED, Code.LOAD_TIMEOUT) and live_claims() == 1
    assert services.rebuild_failed(lease=life.lease, now=late) == 1  # idle; slow's container still exists
    assert life.report(slow, node, Observed.GONE).state == State.FAILED
    assert services.rebuild_failed(lease=life.lease, now=late) == 1


@pytest.mark.req("LIFE-01")
def test_a_stop_that_nobody_confirms_is_said_and_holds(life: Life) -> None:
    node, task = make_node(), make_task()
    life.run(task, node)
    services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=NOW)
    late = NOW + timedelta(seconds=settings.STOP_DEADLINE_S + 1)
    assert services.expire_deadlines(lease=life.lease, now=late) == 0  # the node itself is silent
    Liveness.objects.update(last_seen_at=late)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    services.rebuild_failed(lease=life.lease, now=late)
    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.STOP_UNCONFIRMED) and live_claims() == 1
    life.report(task, node, Observed.GONE)
    services.rebuild_failed(lease=life.lease, now=late)
    task.refresh_from_db()
    assert task.state == State.STOPPED and live_claims() == 0


@pytest.mark.req("RECOV-05")
def test_one_task_that_cannot_be_mended_does_not_stop_the_rest(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = make_task(state=State.FAILED), make_task(state=State.FAILED)
    from apps.workloads.services import mending

    def broken(task: object, now: object) -> int:
        if task == bad:
            raise RuntimeError("a broken row")
        return 1

    monkeypatch.setattr(mending, "rebuild_after", broken)
    assert services.rebuild_failed(lease=life.lease, now=NOW) == 1
    good.refresh_from_db(), bad.refresh_from_db()
    assert (good.state, bad.state) == (State.PENDING, State.FAILED)


@pytest.mark.req("TEN-02", "TEN-04")
def test_what_people_see_starts_with_their_scope() -> None:
    from apps.core.errors import NotFound
    from apps.tenants.scope import viewer_of
    from tests.factories import make_member, make_tenant

    tenant = make_tenant()
    maker, colleague, admin = (make_member(tenant, role) for role in ("member", "member", "admin"))
    group = make_group(tenant, maker)
    make_task(group)
    for user, seen in ((maker, 1), (colleague, 0), (admin, 1), (make_member(make_tenant()), 0)):
        viewer = viewer_of(user)
        assert selectors.groups(viewer).count() == selectors.tasks(viewer).count() == seen
        if not seen:
            with pytest.raises(NotFound):
                selectors.group_by_id(viewer, group.public_id)


@pytest.mark.req("TEN-07")
@pytest.mark.parametrize("quota", [{"replicas": 2}, {"gpus": 2}])
def test_starting_again_is_asking_anew_and_counted(quota: dict[str, int]) -> None:
    tenant = make_tenant(quota=quota)
    group = make_group(tenant)
    first, second = make_task(group), make_task(group)
    services.request_stop(actor=SYSTEM, tasks=[first], why=reason(Code.STOP_REQUESTED), now=NOW)
    make_task(make_group(tenant))  # takes the room that was left
    with pytest.raises(Refusal) as caught:
        services.start_again(actor=SYSTEM, tasks=[first, second], now=LATER)
    assert caught.value.code == "quota_exceeded" and caught.value.params["asked"] == 1
    first.refresh_from_db()
    assert first.state == State.STOPPED
    services.request_stop(actor=SYSTEM, tasks=[second], why=reason(Code.STOP_REQUESTED), now=NOW)
    assert services.start_again(actor=SYSTEM, tasks=[first], now=LATER) == 1


@pytest.mark.req("TEN-01")
def test_nothing_of_a_suspended_tenant_and_nothing_deleted_is_started_again() -> None:
    task, deleted = make_task(), make_task()
    for one in (task, deleted):
        services.request_stop(actor=SYSTEM, tasks=[one], why=reason(Code.STOP_REQUESTED), now=NOW)
    services.request_delete(actor=SYSTEM, group=deleted.group, now=NOW)
    assert services.start_again(actor=SYSTEM, tasks=[deleted], now=LATER) == 0
    Tenant.objects.filter(pk=task.group.tenant_id).update(status=TenantStatus.SUSPENDED)
    with pytest.raises(Refusal) as caught:
        services.start_again(actor=SYSTEM, tasks=[task], now=LATER)
    assert caught.value.code == "tenant_suspended"
