"""Sleep and wake by services: what is held, what is told to the node, what each special wake does."""

from datetime import datetime, timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.messages import RunningReport, TaskSpec
from agent.contract.states import Desired, Observed, Phase, State
from apps.core import versions
from apps.core.errors import Conflict, Refusal
from apps.fleet.models import Duty, Liveness, Node, Port
from apps.tenants.models import Tenant, TenantStatus
from apps.workloads import selectors, services
from apps.workloads.models import Claim, Event, Task
from apps.workloads.services import Did
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_node, make_task

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(seconds=1)


def fresh(task: Task) -> Task:
    task.refresh_from_db()
    return task


def held() -> tuple[int, int]:
    return Claim.objects.filter(released_at__isnull=True).count(), Port.objects.count()


def orders(node: Node) -> list[tuple[str, bool]]:
    return [(wanted.desired, wanted.sleep is not None) for wanted in selectors.desired_of(node)]


def sleep(task: Task, now: datetime = NOW) -> services.Act:
    return services.request_sleep(by="ann", task=task, now=now)


def wake(task: Task, now: datetime = LATER) -> services.Act:
    return services.request_wake(by="ann", task=task, now=now)


def asleep(life: Life, node: Node, **more: object) -> Task:
    task = life.run(make_task(**more), node)
    sleep(task)
    life.report(task, node, Observed.ASLEEP)
    assert task.state == State.SLEEPING
    return task


@pytest.mark.req("SLEEP-01", "SLEEP-02")
def test_from_running_to_sleep_and_back_with_place_card_and_port_kept(life: Life) -> None:
    node, task = make_node(), make_task(engine="vllm", image="vllm/vllm-openai:v0.10.0")
    life.place(task, node)
    spec = life.claim(task, node)
    assert isinstance(spec, TaskSpec) and spec.sleep_enabled
    life.report(task, node, Observed.READY, Phase.READY)
    act = sleep(task)
    assert (act.did, act.why.code, act.next.code) == (Did.DRAINING, "sleep_requested", "next_falls_asleep")
    assert (fresh(task).state, task.desired) == (State.DRAINING, Desired.SLEEP)
    assert selectors.ready_replicas() == [] and orders(node) == [(Desired.STOP, True)]
    life.report(task, node, Observed.ASLEEP, notes=[reason(Code.SLEEP_CALL_SKIPPED, engine="x")])
    assert (task.state, task.reason_code, task.running_since) == (State.SLEEPING, Code.ASLEEP, None)
    assert held() == (1, 1) and orders(node) == [(Desired.STOP, True)]
    assert Event.objects.filter(task=task, code=Code.SLEEP_CALL_SKIPPED, to_state="").count() == 1

    act = wake(task)
    assert (act.did, act.why.code, act.next.code) == (Did.WAKING, "wake_requested", "next_wakes")
    assert (fresh(task).state, task.attempt, task.phase) == (State.WAKING, 1, Phase.CLAIMED)
    assert orders(node) == [(Desired.RUN, False)] and selectors.ready_replicas() == []
    life.report(task, node, Observed.STARTING, Phase.LOADING)
    assert selectors.ready_replicas() == []
    assert life.report(task, node, Observed.READY, Phase.READY).state == State.RUNNING
    assert len(selectors.ready_replicas()) == 1 and held() == (1, 1) and task.deadline_at is None


@pytest.mark.req("SLEEP-04", "GW-02")
def test_what_callers_are_told_of_sleep_is_published_with_each_step(life: Life) -> None:
    seen = [versions.read()]

    def published() -> set[int]:
        seen.append(versions.read())
        assert seen[-1] > seen[-2], "gateways read the table anew"
        return selectors.sleeping_groups()

    node = make_node()
    task = asleep(life, node)
    assert published() == {task.group_id}
    sibling = make_task(task.group, rank=1)
    assert selectors.sleeping_groups() == set(), "it is on its way, and serves without anybody's doing"
    Task.objects.filter(pk=sibling.pk).update(state=State.STOPPED, desired=Desired.STOP)
    assert selectors.sleeping_groups() == {task.group_id}
    Liveness.objects.filter(node=node).update(last_seen_at=NOW - timedelta(hours=1))
    assert wake(task).did is Did.NOTED
    assert published() == set(), "asked for while its node is away: it wakes by itself"
    sleep(fresh(task), LATER)
    assert published() == {task.group_id}
    Liveness.objects.filter(node=node).update(last_seen_at=LATER)
    assert wake(task).did is Did.WAKING
    assert published() == set()


@pytest.mark.req("SLEEP-01")
def test_a_sleeper_stays_what_it_is_whatever_its_node_lists(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    listed = [RunningReport(task.public_id, 1, Observed.ASLEEP)]
    late = NOW + timedelta(seconds=settings.RECONCILE_GRACE_S + 1)
    assert services.reconcile_node(node=node, running=listed, now=late) == 0
    Liveness.objects.filter(node=node).update(incarnation="run-2", report_sequence=0)
    services.reconcile_node(node=node, running=listed, now=late)  # the next run of the agent found it
    assert Claim.objects.get().incarnation == "run-2"
    services.reconcile_node(node=node, running=[], now=late)  # and now it is gone
    services.reconcile_node(node=node, running=[], now=late)
    assert (fresh(task).state, task.reason_code) == (State.SLEEPING, Code.ASLEEP_NO_CONTAINER)
    assert held() == (1, 1) and Claim.objects.get().incarnation == ""
    assert Event.objects.filter(code=Code.ASLEEP_NO_CONTAINER).count() == 1
    services.reconcile_node(node=node, running=listed, now=late)  # a list that was too old said so
    assert Claim.objects.get().incarnation == "run-2"


@pytest.mark.req("SLEEP-03")
@pytest.mark.parametrize("observed", [Observed.GONE, Observed.EXITED])
def test_woken_without_its_container_it_gets_a_new_one_in_its_old_place(
    life: Life, observed: Observed
) -> None:
    node = make_node()
    task = life.run(make_task(), node)
    sleep(task)
    life.report(task, node, observed)  # an agent that knows no sleep
    assert (task.state, task.reason_code) == (State.SLEEPING, Code.ASLEEP_NO_CONTAINER)
    act = wake(task)
    assert (act.did, act.why.code) == (Did.WAKING, "wake_new_container")
    assert (fresh(task).phase, orders(node)) == (Phase.PLACED, [(Desired.RUN, False)])
    spec = life.claim(task, node)
    assert isinstance(spec, TaskSpec) and spec.attempt == 2 and spec.ports[0].host_port == 20001
    assert fresh(task).phase == Phase.CLAIMED and task.deadline_at is not None
    assert task.deadline_at > NOW + timedelta(seconds=settings.CLAIM_DEADLINE_S)
    assert life.report(task, node, Observed.READY, Phase.READY).state == State.RUNNING
    assert held() == (1, 1)


@pytest.mark.req("SLEEP-03", "SLEEP-06")
def test_woken_before_its_agent_heard_that_what_ended_there_sleeps_it_gets_a_new_attempt(life: Life) -> None:
    """An agent starts no attempt again that ended by itself while it was wanted."""
    node = make_node()
    task = life.run(make_task(), node, percent=40)
    shares = set(Claim.objects.get().cards.values_list("card_id", "percent"))
    services.leave_routes(task, "idle", reason(Code.IDLE, idle_minutes=5), NOW)
    heard = orders(node)
    life.report(task, node, Observed.EXITED, exit_code=1)
    assert (task.state, task.attempt) == (State.SLEEPING, 1)
    act = wake(task)
    assert (act.did, act.why.code) == (Did.WAKING, "wake_new_container")
    (wanted,) = selectors.desired_of(node)
    assert heard == orders(node) == [(Desired.RUN, False)] and wanted.attempt == fresh(task).attempt == 2
    (claim,) = Claim.objects.filter(released_at__isnull=True)
    assert (claim.attempt, claim.node) == (2, node)
    assert set(claim.cards.values_list("card_id", "percent")) == shares and len(shares) == 1
    assert Claim.objects.get(attempt=1).released_at == LATER  # its card time ends where the next one's begins
    assert claim.created_at == LATER and held() == (1, 1)
    assert life.report(task, node, Observed.GONE, attempt=1).state == State.WAKING
    spec = life.claim(task, node)
    assert isinstance(spec, TaskSpec) and (spec.attempt, spec.ports[0].host_port) == (2, 20001)
    assert life.report(task, node, Observed.READY, Phase.READY).state == State.RUNNING
    assert Event.objects.get(to_state=State.WAKING).attempt == 2


@pytest.mark.req("SLEEP-03")
def test_a_container_that_turns_out_gone_at_the_wake_is_built_anew_once(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    wake(task)
    life.report(task, node, Observed.GONE)
    assert (task.state, task.reason_code) == (State.WAKING, Code.WAKE_NEW_CONTAINER)
    assert isinstance(life.claim(task, node), TaskSpec) and held() == (1, 1)
    life.report(task, node, Observed.GONE)
    assert task.state == State.FAILED and held() == (0, 0)


@pytest.mark.req("SLEEP-04")
def test_woken_while_its_node_is_offline_nothing_moves_and_recovery_rebuilds_it_elsewhere(life: Life) -> None:
    node, other = make_node(), make_node()
    task = asleep(life, node)
    Liveness.objects.filter(node=node).update(last_seen_at=NOW - timedelta(seconds=settings.NODE_SILENT_S))
    act = wake(task)
    assert (act.did, act.why.code, act.next.code) == (Did.NOTED, "wake_node_offline", "next_wakes_by_itself")
    assert act.why.params["node"] == node.name
    assert (fresh(task).state, task.desired) == (State.SLEEPING, Desired.RUN) and held() == (1, 1)
    assert wake(task).did == Did.NOTHING and services.wake_waiting(lease=life.lease, now=LATER) == 0
    assert Event.objects.filter(code=Code.WAKE_NODE_OFFLINE).count() == 1
    assert services.lose_nodes(lease=life.lease, node_ids=[node.pk], now=LATER) == 1
    assert (fresh(task).state, task.node, task.rebuilds) == (State.PENDING, None, 0)
    life.place(task, other, port=20002)
    assert orders(node) == [(Desired.STOP, False)]  # back, it removes what it kept
    life.report(task, node, Observed.GONE, attempt=1)
    assert held() == (1, 1) and fresh(task).state == State.SCHEDULING


@pytest.mark.req("SLEEP-04")
def test_a_node_that_is_back_in_time_wakes_it_itself(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    Liveness.objects.filter(node=node).update(last_seen_at=None)
    wake(task)
    Liveness.objects.filter(node=node).update(last_seen_at=LATER)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 1
    assert (fresh(task).state, task.attempt) == (State.WAKING, 1)


@pytest.mark.req("SLEEP-01", "RECOV-02")
def test_a_sleeper_on_a_lost_node_sleeps_on_and_so_does_one_that_was_falling_asleep(life: Life) -> None:
    node = make_node(cards=2)
    sleeper, falling = asleep(life, node, gpu_required=0), life.run(make_task(), node, port=20002)
    sleep(falling)
    assert services.lose_nodes(lease=life.lease, node_ids=[node.pk], now=LATER) == 1
    assert fresh(sleeper).state == fresh(falling).state == State.SLEEPING
    assert falling.reason_code == Code.NODE_LOST and held() == (2, 2)


@pytest.mark.req("LIFE-09", "SLEEP-03")
def test_on_a_node_that_is_emptied_it_sleeps_on_without_a_place_and_wakes_elsewhere(life: Life) -> None:
    node, other = make_node(), make_node()
    task = asleep(life, node)
    Node.objects.filter(pk=node.pk).update(duty=Duty.DRAIN)
    assert services.unplace_sleeper(lease=life.lease, task=fresh(task), now=LATER)
    assert (fresh(task).state, task.node, task.reason_code) == (State.SLEEPING, None, Code.ASLEEP_NO_PLACE)
    assert orders(node) == [(Desired.STOP, False)] and held() == (1, 1)  # until the node says it is gone
    life.report(task, node, Observed.GONE)
    assert fresh(task).state == State.SLEEPING and held() == (0, 0)
    act = wake(task)
    assert (act.did, act.why.code) == (Did.PLACING, "wake_new_place")
    assert fresh(task).state == State.PENDING and life.place(task, other).attempt == 2


@pytest.mark.req("LIFE-09")
def test_woken_on_a_node_that_is_just_being_emptied_it_is_placed_anew(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    Node.objects.filter(pk=node.pk).update(duty=Duty.MAINTENANCE)
    awake = life.run(make_task(), make_node(), port=20002)
    assert not services.unplace_sleeper(lease=life.lease, task=awake, now=LATER)  # that is for sleepers
    assert wake(task).did == Did.PLACING
    assert fresh(task).state == State.PENDING and orders(node) == [(Desired.STOP, False)]
    assert held() == (2, 2)


@pytest.mark.req("LIFE-09")
def test_a_sleeper_survives_the_deletion_of_its_node(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    services.clear_node(node=node, by="ann", now=LATER)
    node.delete()
    assert (fresh(task).state, task.node) == (State.SLEEPING, None) and held() == (0, 0)
    assert wake(task).did == Did.PLACING


@pytest.mark.req("SLEEP-06")
def test_what_left_the_routes_is_called_back_or_ordered_to_sleep_never_both(life: Life) -> None:
    node = make_node()
    task = life.run(make_task(), node)

    def leave() -> None:
        assert services.leave_routes(fresh(task), "idle", reason(Code.IDLE, idle_minutes=5), NOW)

    leave()
    assert selectors.ready_replicas() == [] and orders(node) == [(Desired.RUN, False)]
    stale = Task.objects.select_related("node").get(pk=task.pk)
    assert services.call_back(stale, "idle", LATER)
    assert (fresh(task).state, task.desired, task.phase) == (State.RUNNING, Desired.RUN, Phase.READY)
    assert len(selectors.ready_replicas()) == 1
    assert not services.order_sleep(stale, LATER) and orders(node) == [(Desired.RUN, False)]
    leave()
    stale = fresh(task)
    assert services.order_sleep(Task.objects.get(pk=task.pk), LATER) and orders(node) == [
        (Desired.STOP, True)
    ]
    assert not services.call_back(stale, "idle", LATER) and not services.call_back(fresh(task), "idle", LATER)
    assert fresh(task).state == State.DRAINING


@pytest.mark.req("SLEEP-02", "SLEEP-06")
def test_a_wake_while_it_falls_asleep_calls_it_back_or_follows_the_sleep(life: Life) -> None:
    node = make_node()
    task = life.run(make_task(), node)
    services.leave_routes(task, "idle", reason(Code.IDLE, idle_minutes=5), NOW)
    assert wake(task).did == Did.SERVING and fresh(task).state == State.RUNNING
    sleep(task)
    for did in (Did.NOTED, Did.NOTHING):
        act = wake(task)
        assert (act.did, act.why.code) == (did, "wake_after_sleep")
    assert (fresh(task).state, orders(node)) == (State.DRAINING, [(Desired.STOP, True)])
    life.report(task, node, Observed.ASLEEP)
    assert (task.state, task.desired) == (State.SLEEPING, Desired.RUN)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 1 and fresh(task).state == State.WAKING


@pytest.mark.req("SLEEP-01", "SLEEP-02")
def test_a_sleep_takes_back_a_wake_that_has_not_happened_yet(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    Liveness.objects.filter(node=node).update(last_seen_at=None)
    wake(task)
    assert sleep(task).why.code == "wake_withdrawn" and fresh(task).desired == Desired.SLEEP
    Liveness.objects.filter(node=node).update(last_seen_at=LATER)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 0
    wake(task)
    assert sleep(task).did == Did.SLEEPING  # in the middle of the wake
    assert (fresh(task).state, orders(node)) == (State.SLEEPING, [(Desired.STOP, True)])


@pytest.mark.req("SLEEP-02", "LIFE-01")
def test_a_wake_that_takes_too_long_fails_with_the_last_lines_and_is_rebuilt(life: Life) -> None:
    node = make_node()
    task = asleep(life, node)
    wake(task, NOW)
    late = NOW + timedelta(seconds=settings.START_DEADLINE_S + 1)
    Liveness.objects.update(last_seen_at=late)
    assert services.expire_deadlines(lease=life.lease, now=late, last_lines=lambda _: ["no weights"]) == 1
    assert (fresh(task).state, task.reason_code) == (State.FAILED, Code.WAKE_FAILED)
    assert task.last_error["log_lines"] == ["no weights"] and held() == (1, 1)
    life.report(task, node, Observed.GONE)
    assert services.rebuild_failed(lease=life.lease, now=late) == 1 and fresh(task).state == State.PENDING


@pytest.mark.req("SLEEP-01", "LIFE-01")
def test_a_sleep_that_nobody_confirms_is_said_and_confirmed_later(life: Life) -> None:
    node = make_node()
    task = life.run(make_task(), node)
    sleep(task)
    late = NOW + timedelta(seconds=settings.SLEEP_DRAIN_S + settings.STOP_DEADLINE_S + 1)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    assert (fresh(task).state, task.reason_code) == (State.SLEEPING, Code.SLEEP_UNCONFIRMED)
    assert orders(node) == [(Desired.STOP, True)] and held() == (1, 1)
    life.report(task, node, Observed.ASLEEP)
    assert task.reason_code == Code.ASLEEP


@pytest.mark.req("SLEEP-06", "LIFE-01")
def test_what_waits_out_of_the_routes_too_long_serves_again(life: Life) -> None:
    task = life.run(make_task(), make_node())
    services.leave_routes(task, "idle", reason(Code.IDLE, idle_minutes=5), NOW)
    late = NOW + timedelta(seconds=settings.SLEEP_DRAIN_S + 1)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    assert (fresh(task).state, task.desired, task.reason_code) == (
        State.RUNNING,
        Desired.RUN,
        Code.STILL_USED,
    )


@pytest.mark.req("TEN-01", "SLEEP-02")
def test_a_suspended_tenant_may_sleep_and_not_wake(life: Life) -> None:
    node = make_node()
    task = life.run(make_task(), node)
    Tenant.objects.filter(pk=task.group.tenant_id).update(status=TenantStatus.SUSPENDED)
    sleep(task)
    life.report(task, node, Observed.ASLEEP)
    with pytest.raises(Refusal) as caught:
        wake(task)
    assert caught.value.code == "tenant_suspended" and fresh(task).desired == Desired.SLEEP
    Task.objects.filter(pk=task.pk).update(desired=Desired.RUN)  # asked for before the suspension
    assert services.wake_waiting(lease=life.lease, now=LATER) == 0


@pytest.mark.req("LIFE-09", "SLEEP-01")
def test_neither_of_a_pair_sleeps_while_it_is_exchanged(life: Life) -> None:
    node = make_node()
    task = life.run(make_task(), node)
    make_task(task.group, replaces=task)
    with pytest.raises(Conflict) as caught:
        sleep(task)
    assert caught.value.code == "replica_in_exchange" and fresh(task).state == State.RUNNING


@pytest.mark.req("SLEEP-01", "LIFE-01")
@pytest.mark.parametrize("action", ["sleep", "wake"])
def test_killed_before_its_transaction_ends_an_action_has_done_nothing(
    life: Life, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    task = asleep(life, node) if action == "wake" else life.run(make_task(), node)
    before = (task.state, task.version, Event.objects.count())

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apps.workloads.services.sleeping._look", dies)
    with pytest.raises(KeyboardInterrupt):
        (sleep if action == "sleep" else wake)(task)
    assert (fresh(task).state, task.version, Event.objects.count()) == before
    monkeypatch.undo()
    assert (sleep if action == "sleep" else wake)(task).moved
