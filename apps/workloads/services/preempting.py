"""Room for a waiting task, from work of lower priority (SCHED-11): who gives way, and what is kept for whom.

Chooses nobody: checks that the choice still holds and suffices, so that nobody gives way in vain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, State
from apps.core import hints
from apps.core.leases import Held
from apps.tenants import redline
from apps.tenants.models import TenantStatus
from apps.workloads.models import Reservation, Task
from apps.workloads.policy.moves import SERVING
from apps.workloads.services.emptying import unplace
from apps.workloads.services.ending import take_off
from apps.workloads.services.ledger import Books, Waiting, open_books
from apps.workloads.services.placing import room_kept, rows_of, tell_why
from apps.workloads.services.reporting import note_moments

ACTOR = "scheduler"


@dataclass(frozen=True)
class RoomWanted:
    """Cards of a node (row ids) that shall be kept for a waiting task, once its `victims` (row ids) are gone;
    without victims they come free by themselves. `percent` None = each card alone."""

    task_id: int
    version: int
    node_id: int
    victims: tuple[int, ...]
    cards: tuple[int, ...]
    percent: int | None


def make_room(*, lease: Held, wanted: Sequence[RoomWanted], now: datetime) -> bool:
    """Let the victims of one task, or of all of a gang, give way, and keep what they leave for
    PREEMPTION_HOLD_S, in one transaction. A victim holds its place until its node confirms its end; one that
    sleeps, sleeps on without a place.

    False where any of it does not hold any more: then nothing is written. Raises LeaseLost.
    """
    victims = {victim for one in wanted for victim in one.victims}
    with lease.transaction():
        books = open_books(
            tasks=[one.task_id for one in wanted],
            nodes={one.node_id for one in wanted},
            cards={card for one in wanted for card in one.cards},
            victims=victims,
            now=now,
        )
        leaving = Task.objects.select_related("group", "node").in_bulk(victims)
        if not _holds(wanted, books, leaving, now):
            return False
        for victim in sorted(victims):
            _give_way(leaving[victim], now)
        _keep(wanted, bool(victims), now)
        hints.kick("scheduling.place")
    return True


def _holds(wanted: Sequence[RoomWanted], books: Books, leaving: dict[int, Task], now: datetime) -> bool:
    pause = now - timedelta(seconds=settings.PREEMPTION_PAUSE_S)
    asked = []
    for one in wanted:
        task = books.tasks.get(one.task_id)
        if task is None or task.version != one.version or task.reserved:
            return False
        if one.victims and task.made_room_at is not None and task.made_room_at > pause:
            return False
        victims = [leaving.get(victim) for victim in one.victims]
        if not all(victim is not None and _may_go(victim, task, pause) for victim in victims):
            return False
        asked.append(task.asks(one.node_id, one.cards, one.percent))
    return books.ledger.book(asked) is None


def _may_go(victim: Task, task: Waiting, pause: datetime) -> bool:
    # What a sleeper was promised stays protected from tenants that it does not share with.
    asleep = victim.state == State.SLEEPING
    if asleep and not redline.may_share(task.tenant_id, victim.group.tenant_id):
        return False
    placed = victim.state in SERVING or (asleep and victim.node_id is not None)
    spared = victim.preempted_at is not None and victim.preempted_at > pause
    return placed and not spared and victim.group.preemptible and victim.group.priority < task.priority


def _give_way(victim: Task, now: datetime) -> None:
    why = reason(Code.PREEMPTED)
    if victim.state == State.SLEEPING and victim.desired == Desired.SLEEP:
        unplace(victim, why, by=ACTOR, now=now, preempted_at=now)
    else:
        take_off(victim, why, actor=ACTOR, now=now, preempted_at=now)


def _keep(wanted: Sequence[RoomWanted], made_room: bool, now: datetime) -> None:
    until, ids = now + timedelta(seconds=settings.PREEMPTION_HOLD_S), [one.task_id for one in wanted]
    Reservation.objects.filter(task__in=ids).delete()  # their time was up
    kept = Reservation.objects.bulk_create(
        Reservation(
            task_id=one.task_id, node_id=one.node_id, percent=one.percent, created_at=now, until=until
        )
        for one in wanted
    )
    cards = Reservation.cards.through
    cards.objects.bulk_create(
        cards(reservation_id=row.pk, card_id=card)
        for row, one in zip(kept, wanted, strict=True)
        for card in one.cards
    )
    why = room_kept(until)
    if made_room:
        Task.objects.filter(pk__in=ids).update(made_room_at=now)
    tell_why(ids, rows_of([why]))
    for task in Task.objects.filter(pk__in=ids):
        note_moments(task, [why], by=ACTOR, now=now)


def drop_kept_room(*, lease: Held, now: datetime) -> int:
    """Give up room that is kept for nobody any more, or for too long; answers for how many tasks. Who is
    suspended gets no place, so room is kept in vain."""
    waits = Q(task__state=State.PENDING, task__desired=Desired.RUN)
    waits &= ~Q(task__group__tenant__status=TenantStatus.SUSPENDED)
    with lease.transaction():
        _, dropped = Reservation.objects.filter(Q(until__lte=now) | ~waits).delete()
        if dropped:
            hints.kick("scheduling.place")
    return dropped.get(Reservation._meta.label, 0)
