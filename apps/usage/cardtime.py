"""Writes card time (GW-18): from claims, moves and loans to one row a day, attempt and kind.

Counted again and again while a claim lives, once more when it was released; the same rows give the same time,
so a run that was killed or done twice changes nothing. Names are copied in: what is counted outlives what it
names.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Prefetch, QuerySet

from apps.usage.models import CardTime
from apps.usage.policy.cardtime import Holding, Share, Span, count
from apps.workloads.models import CardClaim, Claim, Event

CHUNK = 200  # claims that are counted in one transaction
# A move is dated before it is committed: what was counted up to a moment may still change by so much.
_LATE = timedelta(minutes=5)


def uncounted() -> QuerySet[Claim]:
    """Claims whose card time is not final: those that live, and those released since."""
    return Claim.objects.filter(card_time_done=False).order_by("pk")


def settle(claims: QuerySet[Claim], *, now: datetime) -> int:
    """Count the card time of these claims until now, or until they were released; answers how many rows were
    written. Call inside a transaction."""
    found = list(
        claims.filter(card_time_done=False)
        .select_related("task__group__tenant", "task__group__created_by")
        .prefetch_related(Prefetch("cards", CardClaim.objects.prefetch_related("loans")))
    )
    moves = _moves_of(found)
    rows = [row for claim in found for row in _rows_of(claim, moves[claim.task_id, claim.attempt], now)]
    CardTime.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["task_id", "attempt", "day", "kind"],
        update_fields=["card_ms", "counted_until"],
    )
    for done in (True, False):
        counted = [claim.pk for claim in found if (claim.released_at is not None) == done]
        Claim.objects.filter(pk__in=counted).update(card_time_until=now, card_time_done=done)
    return len(rows)


def _moves_of(claims: list[Claim]) -> dict[tuple[int, int], list[tuple[datetime, str]]]:
    found: dict[tuple[int, int], list[tuple[datetime, str]]] = defaultdict(list)
    events = Event.objects.filter(task__in={claim.task_id for claim in claims}).exclude(to_state="")
    for task, attempt, at, state in events.order_by("at", "pk").values_list(
        "task_id", "attempt", "at", "to_state"
    ):
        if task is not None and attempt is not None:
            found[task, attempt].append((at, state))
    return found


def _rows_of(claim: Claim, moves: list[tuple[datetime, str]], now: datetime) -> Iterable[CardTime]:
    until = claim.released_at or now
    shares = tuple(_share(held, until) for held in claim.cards.all())
    if not shares:
        return
    group = claim.task.group
    first_day = (claim.card_time_until - _LATE).date() if claim.card_time_until else None
    held = Holding(Span(claim.created_at, until), shares, moves)
    for (day, kind), card_ms in count(held, first_day=first_day).items():
        yield CardTime(
            day=day,
            kind=kind,
            task_id=claim.task.public_id,
            attempt=claim.attempt,
            tenant_id=group.tenant.public_id,
            tenant_slug=group.tenant.slug,
            member=group.created_by.get_username(),
            task_type=group.task_type,
            group_id=group.public_id,
            group_name=group.name,
            card_ms=card_ms,
            counted_until=until,
        )


def _share(held: CardClaim, until: datetime) -> Share:
    lent = tuple(
        Span(loan.since, loan.ended_at or until)
        for loan in held.loans.all()
        if (loan.ended_at or until) > loan.since
    )
    return Share(100 if held.percent is None else held.percent, lent)
