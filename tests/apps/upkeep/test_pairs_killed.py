"""A drain's pair under everything that may happen meanwhile: kill, two workers, force (LIFE-09).

Whatever happens, the service ends with as many replicas as it had, or with none where its people said so.
"""

from datetime import timedelta

import pytest
from django.db.models import F

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, State, TaskType
from apps.core import leases
from apps.core.errors import Conflict
from apps.core.leases import LeaseLost
from apps.fleet.models import Liveness, Node
from apps.tenants.scope import viewer_of
from apps.upkeep import loop, services
from apps.workloads import services as work
from apps.workloads.models import Claim, Task
from apps.workloads.selectors import desired_of
from apps.workloads.services import settle_pair
from tests import factories
from tests.apps.core.threads import run_at_once
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
)
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-09")]


# --- two nodes, two workers, kills ----------------------------------------------------------------


def test_of_two_nodes_emptied_at_once_nothing_lands_on_the_other(old, act, group):
    other = factories.make_node("other")
    first, second = serving(old, group), serving(other)
    for node in (old, other):
        services.drain_node(actor=act, node=node, now=NOW)
    assert run_drain()["begun"] == 0
    third = factories.make_node("third", cards=2)
    assert run_drain()["begun"] == 2
    assert {replacement_of(first).node, replacement_of(second).node} == {third}


def test_a_replacement_whose_own_node_is_emptied_goes_on_to_a_third(task, new, act, group):
    third = factories.make_node("third", cards=2)
    second = replacement_of(task)
    services.drain_node(actor=act, node=new, now=NOW)
    run_drain()
    second.refresh_from_db()
    assert (second.node, second.replaces_id, routed()) == (third, task.pk, {task.public_id})


class Killed(BaseException):
    """kill -9: no handler of the program sees it."""


@pytest.mark.parametrize("step", ["begin_replacement", "settle_pair", "end_drained", "remove_retired"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_the_next_run_goes_on(old, new, act, group, monkeypatch, step, when):
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    real, killed = getattr(work, step), []

    def die(**kwargs):
        if killed:
            return real(**kwargs)
        done = real(**kwargs) if when == "after" else None
        if when == "before" or done:
            killed.append(step)
            raise Killed
        return done

    monkeypatch.setattr(loop.work, step, die)
    late = NOW
    for _ in range(12):
        late += timedelta(minutes=2)
        Liveness.objects.update(last_seen_at=late)
        try:
            run_drain(late)
        except Killed:
            continue
        assert routed(), "at every moment somebody serves"
        for one in Task.objects.filter(group=group):
            if one.state == State.SCHEDULING:
                get_ready(one, late)
            elif one.state == State.STOPPING:
                report(one, Observed.GONE, late)
    assert killed == [step]
    (left,) = group.tasks.all()
    assert (left.state, left.rank, left.node, left.pk != task.pk) == (State.RUNNING, 0, new, True)
    assert Task.objects.filter(group=group).count() == 1
    assert not desired_of(old)


def test_half_a_replacement_is_never_written(old, new, act, group, monkeypatch):
    serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)

    def die(**kwargs):
        raise Killed

    monkeypatch.setattr(work.emptying, "commit_placements", die)
    with pytest.raises(Killed):
        run_drain()
    assert group.tasks.count() == 1 and not Claim.objects.filter(node=new).exists()


def test_a_worker_that_was_overtaken_writes_nothing(task, old):
    second = replacement_of(task)
    get_ready(second)
    task.refresh_from_db()
    stale = lease_of()
    leases.Lease.objects.filter(name="upkeep.drain").update(fence=F("fence") + 1)
    with pytest.raises(LeaseLost):
        settle_pair(lease=stale, old=task, new=second, keep_new=True, now=NOW)
    task.refresh_from_db()
    assert task.state == State.RUNNING


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_begin_one_replacement(operator):
    old, _ = factories.make_node("old"), factories.make_node("new", cards=4)
    task = serving(old)
    services.drain_node(actor=viewer_of(operator), node=old, now=NOW)

    def drain_as(number):
        lease = leases.acquire("upkeep.drain", f"worker-{number}", 30)
        if lease is None:
            return 0
        begun = loop.drain(lease, NOW)["begun"]
        lease.release()
        return begun

    for _ in range(3):
        run_at_once(2, drain_as)
    assert Task.objects.filter(group=task.group).count() == 2


# --- force and deletion ---------------------------------------------------------------------------


def test_force_stops_what_has_no_place_first_and_starts_it_when_there_is_one(api_client, operator, old, act):
    inference = serving(old)
    factories.make_card(old, 1)
    training = serving(old, factories.make_group(task_type=TaskType.TRAINING, state=State.RUNNING))
    with pytest.raises(Conflict):
        services.force_node(actor=act, node=old, after_s=0, now=NOW)
    services.drain_node(actor=act, node=old, now=NOW)
    services.force_node(actor=act, node=old, after_s=600, now=NOW)
    assert run_drain()["evicted"] == 0
    late = NOW + timedelta(seconds=600)
    assert run_drain(late)["evicted"] == 2
    for one in (inference, training):
        one.refresh_from_db()
        assert (one.state, one.node, one.rebuilds, one.reason_code) == (
            State.PENDING,
            None,
            0,
            Code.NODE_FORCED,
        )
    assert {want.desired for want in desired_of(old)} == {Desired.STOP}
    factories.make_node("new", cards=2)
    assert run_scheduler()["placed"] == 2


def test_a_word_forces_at_once_and_can_be_taken_back(api_client, operator, old, act):
    services.drain_node(actor=act, node=old, now=NOW)
    path = f"/api/v1/nodes/{old.public_id}/force"

    def say(after):
        answer = api_client(operator).post(path, {"after_seconds": after}, format="json")
        assert answer.status_code == 202, answer.content
        return answer.json()["changed"], answer.json()["force_at"] is not None

    assert [say(3600), say(None), say(None), say(0), say(0)] == [
        (True, True),
        (True, False),
        (False, False),
        (True, True),
        (False, True),
    ]
    services.resume_node(actor=act, node=old, now=NOW)
    assert Node.objects.get(pk=old.pk).duty_force_at is None
    assert api_client(operator).post(path, {"after_seconds": 0}, format="json").status_code == 409
    assert api_client(operator).post(path, {}, format="json").status_code == 400


def test_force_does_not_wait_for_a_replacement_that_starts(task, old, act, group):
    second = replacement_of(task)
    services.force_node(actor=act, node=old, after_s=0, now=NOW)
    run_drain()
    task.refresh_from_db()
    assert (task.state, routed()) == (State.DRAINING, set())
    finish(task)
    assert [one.pk for one in group.tasks.all()] == [second.pk]


def test_a_node_deleted_with_a_pair_on_it_leaves_one_replica(task, old, act, group):
    second = replacement_of(task)
    services.delete_node(actor=act, node=old, force="old", now=NOW)
    finish(task)
    second.refresh_from_db()
    assert (second.rank, second.replaces_id, group.tasks.count()) == (0, None, 1)


def test_maintenance_empties_a_node_the_same_way(old, new, act, group):
    task = serving(old, group)
    services.maintain_node(actor=act, node=old, now=NOW)
    assert run_drain()["begun"] == 1
    get_ready(replacement_of(task))
    run_drain()
    assert len(routed()) == 1 and task.public_id not in routed()
