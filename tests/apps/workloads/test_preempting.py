"""Room made for work of higher priority: who gives way, what is kept, that nobody does in vain (SCHED-11)."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.fleet.models import Card, Node
from apps.tenants.models import Tenant, TenantStatus
from apps.tenants.scope import SYSTEM
from apps.workloads import services
from apps.workloads.models import Claim, Event, Reservation, Task
from apps.workloads.policy.faults import Moment, find_faults
from apps.workloads.services import Placement, RoomWanted
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_node, make_shared_group, make_task

pytestmark = [pytest.mark.django_db, pytest.mark.req("SCHED-11")]
HELD = timedelta(seconds=settings.PREEMPTION_HOLD_S)
PAUSE = timedelta(seconds=settings.PREEMPTION_PAUSE_S)


def fresh(task: Task) -> Task:
    task.refresh_from_db()
    return task


def high(**fields: object) -> Task:
    return make_task(make_group(priority=10), **fields)  # type: ignore[arg-type]


def victim(life: Life, node: Node, **group: object) -> Task:
    service = make_group(**{"preemptible": True, "priority": 0, **group})  # type: ignore[arg-type]
    return life.run(make_task(service, gpu_required=node.cards.count()), node)


def wanted(task: Task, node: Node, *victims: Task, percent: int | None = None) -> RoomWanted:
    cards = tuple(node.cards.order_by("index").values_list("pk", flat=True))
    ids = tuple(one.pk for one in victims)
    return RoomWanted(task.pk, fresh(task).version, node.pk, ids, cards, percent)


def make(life: Life, *rooms: RoomWanted, now: datetime = NOW) -> bool:
    return services.make_room(lease=life.lease, wanted=rooms, now=now)


def place(life: Life, task: Task, node: Node, *, percent: int | None = None, now: datetime = NOW) -> bool:
    cards = tuple(node.cards.order_by("index").values_list("pk", flat=True))
    placement = Placement(task.pk, fresh(task).version, node.pk, cards, percent, ())
    return bool(services.commit_placements(lease=life.lease, placements=[placement], now=now))


def test_the_victim_waits_and_its_place_is_kept_until_the_other_stands_there(life: Life) -> None:
    node = make_node(cards=2)
    low, top, other = victim(life, node), high(gpu_required=2), make_task(gpu_required=2)
    assert make(life, wanted(top, node, low))
    assert (fresh(low).state, low.reason_code, low.node, low.preempted_at) == (
        State.PENDING,
        Code.PREEMPTED,
        None,
        NOW,
    )
    assert (fresh(top).reason_code, top.reason_params) == (
        Code.ROOM_KEPT,
        {"until": (NOW + HELD).isoformat(timespec="seconds")},
    )
    assert Event.objects.filter(task=top, code=Code.ROOM_KEPT).count() == 1
    assert not place(life, top, node), "the victim holds its cards until its node says that it is gone"

    life.report(low, node, Observed.GONE)
    assert not place(life, low, node) and not place(life, other, node), "the room is kept"
    assert place(life, top, node)
    assert not Reservation.objects.exists()


def test_what_nobody_took_on_leaves_at_once(life: Life) -> None:
    node = make_node()
    low = life.place(make_task(make_group(preemptible=True)), node)
    top = high()
    assert make(life, wanted(top, node, low))
    assert place(life, top, node)


def test_a_sleeping_victim_sleeps_on_without_a_place(life: Life) -> None:
    node = make_node()
    low = victim(life, node)
    top = make_task(make_group(low.group.tenant, priority=10))
    services.request_sleep(by="ann", task=low, now=NOW)
    life.report(low, node, Observed.ASLEEP)
    assert make(life, wanted(top, node, low))
    assert (fresh(low).state, low.node, low.reason_code) == (State.SLEEPING, None, Code.PREEMPTED)
    life.report(low, node, Observed.GONE)
    assert fresh(low).state == State.SLEEPING and place(life, top, node)


@pytest.mark.req("SCHED-09")
def test_what_fell_asleep_meanwhile_is_protected_from_strangers(life: Life) -> None:
    """The decision saw it run; the red line is asked again where it is written."""
    node = make_node()
    low, top = victim(life, node), high()
    room = wanted(top, node, low)
    services.request_sleep(by="ann", task=low, now=NOW)
    life.report(low, node, Observed.ASLEEP)
    assert not make(life, room)
    assert (fresh(low).state, low.node, low.preempted_at) == (State.SLEEPING, node, None)
    make_shared_group(low.group.tenant, top.group.tenant)
    assert make(life, room)


def test_the_fault_timeline_names_the_cause(life: Life) -> None:
    node = make_node()
    low = victim(life, node)
    assert make(life, wanted(high(), node, low))
    events = Event.objects.filter(task=low).order_by("pk")
    moments = [
        Moment("t", one.attempt, one.at, one.from_state, one.to_state, one.code, one.params) for one in events
    ]
    assert [fault.cause.code for fault in find_faults(moments)] == [Code.PREEMPTED]


def test_room_is_kept_for_so_long(life: Life) -> None:
    node = make_node()
    low, top = victim(life, node), high()
    assert make(life, wanted(top, node, low))
    life.report(low, node, Observed.GONE)
    before = NOW + HELD - timedelta(seconds=1)
    assert services.drop_kept_room(lease=life.lease, now=before) == 0
    assert not place(life, low, node, now=before)
    assert place(life, low, node, now=NOW + HELD)
    assert services.drop_kept_room(lease=life.lease, now=NOW + HELD) == 1


def test_room_is_given_up_when_its_task_stops(life: Life) -> None:
    node = make_node()
    low, top = victim(life, node), high()
    assert make(life, wanted(top, node, low))
    life.report(low, node, Observed.GONE)
    services.request_stop(actor=SYSTEM, tasks=[top], why=reason(Code.STOP_REQUESTED), now=NOW)
    assert place(life, low, node), "at once, before anybody swept"
    assert services.drop_kept_room(lease=life.lease, now=NOW) == 1


def test_room_is_given_up_when_its_tenant_is_suspended(life: Life) -> None:
    node = make_node()
    low, top = victim(life, node), high()
    assert make(life, wanted(top, node, low))
    life.report(low, node, Observed.GONE)
    Tenant.objects.filter(pk=top.group.tenant_id).update(status=TenantStatus.SUSPENDED)
    assert services.drop_kept_room(lease=life.lease, now=NOW) == 1
    assert place(life, low, node)


def test_part_of_a_card_is_kept_and_the_rest_is_not(life: Life) -> None:
    node = make_node()
    low = life.run(share(preemptible=True), node, percent=50)
    top = share(low, priority=10)
    assert make(life, wanted(top, node, low, percent=40))
    life.report(low, node, Observed.GONE)
    assert not place(life, share(low), node, percent=60)
    assert place(life, share(low), node, percent=50)
    assert place(life, top, node, percent=40)


def share(like: Task | None = None, **group: object) -> Task:
    """A service that takes part of a card, of the same tenant."""
    tenant = {"tenant": like.group.tenant} if like else {}
    service = make_group(**{"gpu_memory_utilization": 50, **tenant, **group})  # type: ignore[arg-type]
    return make_task(service, ports=[{"container_port": 8000}])


@pytest.mark.parametrize("who", ["victim", "taker"])
def test_nobody_gives_way_twice_within_the_pause_nor_twice_for_one(life: Life, who: str) -> None:
    node = make_node()
    low, top = victim(life, node), high()
    if who == "victim":
        Task.objects.filter(pk=low.pk).update(preempted_at=NOW)
    else:
        Task.objects.filter(pk=top.pk).update(made_room_at=NOW)
    almost = NOW + PAUSE - timedelta(seconds=1)
    assert not make(life, wanted(top, node, low), now=almost)
    assert fresh(low).state == State.RUNNING
    assert make(life, wanted(top, node, low), now=NOW + PAUSE)


def test_who_has_room_kept_takes_no_more(life: Life) -> None:
    first, second = make_node(), make_node()
    low, top = victim(life, second), high()
    assert make(life, wanted(top, first))
    assert not make(life, wanted(top, second, low))
    assert fresh(low).state == State.RUNNING


def _stopped(top: Task, low: Task) -> None:
    Task.objects.filter(pk=top.pk).update(state=State.STOPPED)


def _moved_on(top: Task, low: Task) -> None:
    Task.objects.filter(pk=top.pk).update(version=top.version + 1)


def _no_lower(top: Task, low: Task) -> None:
    type(low.group).objects.filter(pk=low.group_id).update(priority=10)


def _spared(top: Task, low: Task) -> None:
    type(low.group).objects.filter(pk=low.group_id).update(preemptible=False)


def _leaves(top: Task, low: Task) -> None:
    Task.objects.filter(pk=low.pk).update(state=State.DRAINING, desired=Desired.SLEEP)


def _is_gone(top: Task, low: Task) -> None:
    low.delete()


def _cordoned(top: Task, low: Task) -> None:
    Node.objects.update(cordoned=True)


def _card_lost(top: Task, low: Task) -> None:
    Card.objects.update(present=False)


def _somebody_else(top: Task, low: Task) -> None:
    other = make_task(state=State.RUNNING, attempt=1, node=low.node, phase=Phase.READY)
    claim = Claim.objects.create(task=other, attempt=1, node=low.node, created_at=NOW)
    claim.cards.create(card=Card.objects.get())


CHANGES = [
    _stopped,
    _moved_on,
    _no_lower,
    _spared,
    _leaves,
    _is_gone,
    _cordoned,
    _card_lost,
    _somebody_else,
]


@pytest.mark.parametrize("change", CHANGES)
def test_nobody_gives_way_in_vain(life: Life, change: Callable[[Task, Task], None]) -> None:
    node = make_node()
    low, top = victim(life, node), high()
    room = wanted(top, node, low)
    change(top, low)
    assert not make(life, room)
    assert not Reservation.objects.exists()
    assert not Event.objects.filter(code=Code.PREEMPTED).exists()


@pytest.mark.req("SCHED-02")
def test_a_gang_gets_all_its_room_or_none(life: Life) -> None:
    first, second = make_node(), make_node()
    lows = [victim(life, first), victim(life, second)]
    group = make_group(priority=10)
    gang = [make_task(group), make_task(group)]
    rooms = [wanted(gang[0], first, lows[0]), wanted(gang[1], second, lows[1])]
    Node.objects.filter(pk=second.pk).update(cordoned=True)
    assert not make(life, *rooms)
    assert {fresh(low).state for low in lows} == {State.RUNNING}
    Node.objects.filter(pk=second.pk).update(cordoned=False)
    assert make(life, *rooms)
    assert {fresh(low).state for low in lows} == {State.PENDING}
    assert Reservation.objects.count() == 2


def test_room_that_comes_free_by_itself_is_kept_without_a_victim(life: Life) -> None:
    node = make_node()
    low, top = victim(life, node, preemptible=False), high()
    services.request_stop(actor=SYSTEM, tasks=[low], why=reason(Code.STOP_REQUESTED), now=NOW)
    assert make(life, wanted(top, node))
    assert fresh(top).made_room_at is None, "nobody gave way"
    life.report(low, node, Observed.GONE)
    assert place(life, top, node)


@pytest.mark.req("SCHED-09")
def test_room_on_another_card_is_not_kept_beside_strangers_of_the_hosts_ipc(life: Life) -> None:
    node = make_node(cards=2)
    stranger = make_task(make_group(), state=State.RUNNING, attempt=1, node=node)
    claim = Claim.objects.create(task=stranger, attempt=1, node=node, created_at=NOW)
    claim.cards.create(card=node.cards.get(index=1))
    low = life.run(make_task(make_group(preemptible=True, task_type=TaskType.TRAINING), engine=""), node)
    top = high()
    type(stranger.group).objects.filter(pk=stranger.group_id).update(parallelism="pipeline_parallel")
    room = RoomWanted(top.pk, 0, node.pk, (low.pk,), (node.cards.get(index=0).pk,), None)
    assert not make(life, room)
    assert fresh(low).state == State.RUNNING
