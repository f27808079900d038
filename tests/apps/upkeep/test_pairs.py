"""A drain's pair under everything that may happen meanwhile: cancel, loss, stop (LIFE-09).

Whatever happens, the service ends with as many replicas as it had, or with none where its people said so.
"""

from datetime import timedelta

import pytest

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, Phase, State
from apps.fleet.models import Liveness
from apps.inference.services.leaving import start_group, stop_group
from apps.tenants.scope import viewer_of
from apps.upkeep import loop, services
from apps.workloads import services as work
from apps.workloads.models import Claim, Event, Task
from apps.workloads.services import (
    begin_replacement,
    leaving,
    lose_nodes,
    rebuild_failed,
    request_delete,
    settle_pair,
)
from tests import factories
from tests.apps.upkeep.work import (
    finish,
    get_ready,
    lease_of,
    replacement_of,
    report,
    routed,
    run_drain,
    run_scheduler,
    serving,
    sweep,
)
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-09")]


# --- cancelled ------------------------------------------------------------------------------------


def test_a_drain_that_is_cancelled_removes_the_one_that_is_not_ready(task, old, act, group):
    second = replacement_of(task)
    services.resume_node(actor=act, node=old, now=NOW)
    done = run_drain()
    assert (done["settled"], done["removed"]) == (1, 1)  # no run of an agent took it on: it goes at once
    assert not Task.objects.filter(pk=second.pk).exists()
    assert Event.objects.filter(group=group, code=Code.REPLACEMENT_DROPPED).exists()
    task.refresh_from_db()
    assert (task.state, task.rank, group.tasks.count()) == (State.RUNNING, 0, 1)
    assert routed() == {task.public_id}


def test_a_drain_that_is_cancelled_after_the_switch_keeps_what_serves(task, old, act, group):
    second = replacement_of(task)
    get_ready(second)
    run_drain()
    services.resume_node(actor=act, node=old, now=NOW)
    finish(task)
    second.refresh_from_db()
    assert (second.state, second.rank, group.tasks.count()) == (State.RUNNING, 0, 1)


def test_cancelled_with_both_ready_the_surplus_gets_time_for_its_calls(task, old, act, group):
    second = replacement_of(task)
    get_ready(second)
    services.resume_node(actor=act, node=old, now=NOW)
    run_drain()
    second.refresh_from_db()
    assert second.state == State.DRAINING and routed() == {task.public_id}
    finish(second)
    assert [one.pk for one in group.tasks.all()] == [task.pk]


# --- nodes and replicas that die ------------------------------------------------------------------


def test_the_emptied_node_dies_while_the_replacement_starts(task, old, group):
    second = replacement_of(task)
    sweep(lose_nodes, node_ids=[old.pk])
    task.refresh_from_db()
    assert task.state == State.PENDING
    run_drain()
    task.refresh_from_db()
    assert task.state == State.STOPPED
    get_ready(second)
    assert run_scheduler() == {"waiting": 0}
    # Its claim on the dead node holds until that is back: then it goes.
    run_drain()
    assert group.tasks.count() == 2
    Claim.objects.filter(node=old).update(released_at=NOW)
    finish(task)
    second.refresh_from_db()
    assert (second.state, second.rank, second.replaces_id) == (State.RUNNING, 0, None)


def test_the_emptied_node_dies_after_the_switch(task, old, group):
    second = replacement_of(task)
    get_ready(second)
    run_drain()
    sweep(lose_nodes, node_ids=[old.pk])
    sweep(rebuild_failed)
    task.refresh_from_db()
    assert (task.state, task.desired) == (State.FAILED, Desired.STOP)
    Claim.objects.filter(node=old).update(released_at=NOW)
    sweep(rebuild_failed)
    finish(task)
    assert [one.pk for one in group.tasks.all()] == [second.pk]


def test_the_replacements_node_dies_and_it_starts_on_a_third(task, new, old, group):
    second = replacement_of(task)
    get_ready(second)  # ready, and lost before the loop saw it
    third = factories.make_node("third")
    Liveness.objects.filter(node=new).update(last_seen_at=NOW - timedelta(hours=1))
    sweep(lose_nodes, node_ids=[new.pk])
    assert run_drain()["settled"] == 0
    assert routed() == {task.public_id}
    run_scheduler()
    second.refresh_from_db()
    assert (second.state, second.node) == (State.SCHEDULING, third)
    get_ready(second)
    run_drain()
    assert routed() == {second.public_id}


def test_a_replacement_that_never_starts_leaves_the_old_one_alone_and_is_tried_anew(task, old, group):
    second = replacement_of(task)
    spent = {"state": State.FAILED, "reason_code": Code.REBUILDS_SPENT, "phase": Phase.NONE}
    Task.objects.filter(pk=second.pk).update(**spent, last_error={"code": "image_missing", "params": {}})
    Claim.objects.filter(task=second).update(released_at=NOW)
    assert run_drain()["settled"] == 0 and routed() == {task.public_id}
    late = NOW + timedelta(hours=1)
    Liveness.objects.update(last_seen_at=late)
    done = run_drain(late)
    assert (done["settled"], done["removed"], done["begun"]) == (1, 1, 1)
    fresh = replacement_of(task)
    assert fresh.pk != second.pk and routed() == {task.public_id}


def test_the_old_one_fails_while_its_replacement_starts(task, group):
    second = replacement_of(task)
    report(task, Observed.EXITED)
    assert task.state == State.FAILED
    run_drain()
    finish(task)
    second.refresh_from_db()
    assert (second.rank, second.replaces_id, second.retired_at) == (0, None, None)


# --- its people -----------------------------------------------------------------------------------


def test_a_service_that_is_stopped_stops_wholly_and_starts_with_as_many_as_it_had(task, old, member, group):
    second = replacement_of(task)
    stop_group(actor=viewer_of(member), group=group, now=NOW)
    report(task, Observed.GONE)
    # Started again before the loop had its turn: of the pair one starts.
    start_group(actor=viewer_of(member), group=group, now=NOW)
    second.refresh_from_db()
    task.refresh_from_db()
    assert (task.state, second.state) == (State.PENDING, State.STOPPED)
    finish(second)
    assert [(one.pk, one.rank) for one in group.tasks.all()] == [(task.pk, 0)]


def test_a_stop_reaches_a_replacement_that_was_made_while_it_waited(
    old, new, act, member, group, monkeypatch
):
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    lock = leaving.lock_groups

    def late(ids):  # the loop was first with the lock
        assert run_drain()["begun"] == 1
        return lock(ids)

    monkeypatch.setattr(leaving, "lock_groups", late)
    assert stop_group(actor=viewer_of(member), group=group, now=NOW).moved == 2
    assert replacement_of(task).state == State.STOPPED


def test_what_was_replaced_is_not_started_again(task, member, group):
    second = replacement_of(task)
    get_ready(second)
    run_drain()
    stop_group(actor=viewer_of(member), group=group, now=NOW)
    report(task, Observed.GONE)
    report(second, Observed.GONE)
    start_group(actor=viewer_of(member), group=group, now=NOW)
    finish(task)
    second.refresh_from_db()
    assert second.state == State.PENDING and group.tasks.count() == 1


def test_a_replica_that_its_people_stop_takes_its_replacement_along(task, member, api_client, group):
    second = replacement_of(task)
    get_ready(second)
    stopped = api_client(member).post(f"/api/v1/tasks/{task.public_id}/stop")
    assert stopped.status_code == 202, stopped.content
    finish(second)
    assert routed() == set() and group.tasks.count() == 1


def test_a_replacement_that_its_people_stop_is_made_anew(task, member, api_client, group):
    second = replacement_of(task)
    api_client(member).post(f"/api/v1/tasks/{second.public_id}/stop")
    run_drain()
    assert routed() == {task.public_id}
    run_drain()
    assert not Task.objects.filter(pk=second.pk).exists()
    assert replacement_of(task).state == State.SCHEDULING


def test_a_service_that_is_deleted_goes_with_both(task, member, group):
    second = replacement_of(task)
    get_ready(second)
    request_delete(actor=viewer_of(member), group=group, now=NOW)
    run_drain()
    for one in (task, second):
        if Task.objects.filter(pk=one.pk).exists():
            report(one, Observed.GONE)
    lease = lease_of("recovery.sweep")
    work.finish_deleted(lease=lease, now=NOW)
    lease.release()
    assert not Task.objects.filter(pk__in=[task.pk, second.pk]).exists()
    assert not type(group).objects.filter(pk=group.pk).exists()


def test_a_service_that_is_deleted_meanwhile_gets_no_replacement(old, new, act, member, group, monkeypatch):
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)

    def late(**kwargs):  # its deletion comes between the loop's look and its write
        request_delete(actor=viewer_of(member), group=group, now=NOW)
        return begin_replacement(**kwargs)

    monkeypatch.setattr(loop.work, "begin_replacement", late)
    assert run_drain()["begun"] == 0
    assert not Task.objects.filter(replaces=task).exists()


def test_a_stop_between_the_look_and_the_choice_is_not_lost(task, member, group, monkeypatch):
    second = replacement_of(task)
    get_ready(second)

    def late(**kwargs):
        stop_group(actor=viewer_of(member), group=group, now=NOW)
        return settle_pair(**kwargs)

    monkeypatch.setattr(loop.work, "settle_pair", late)
    assert run_drain()["settled"] == 0
    monkeypatch.undo()
    run_drain()
    task.refresh_from_db()
    assert task.state == State.STOPPING and routed() == set()
    finish(second)
