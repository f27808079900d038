"""Committing placements: claims, cards, loans, ports and states together, or nothing (SCHED-12).

Owns what is written of a placement, and of why a task waits. Decides no place.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Phase, State
from apps.core import rows
from apps.core.leases import Held
from apps.fleet.models import Port
from apps.workloads.models import CardClaim, Claim, Loan, Reservation, Task
from apps.workloads.services.ledger import Books, Waiting, open_books
from apps.workloads.state import Move, transition_many

_NONE: list[Any] = []


class PlacementClash(Exception):
    """Something of this slice does not hold any more; nothing of the slice was written."""


class Placement(msgspec.Struct, frozen=True):
    """A task on a node. `cards` are row ids; `percent` None = each card alone; `host_ports` are
    (container_port, host_port). `borrowed`: on cards of sleepers, of which loans are made (SHARE-04).
    Those of one `gang` are written together or not at all; "" = it stands for itself."""

    task_id: int
    version: int
    node_id: int
    cards: tuple[int, ...]
    percent: int | None
    host_ports: tuple[tuple[int, int], ...]
    borrowed: bool = False
    gang: str = ""


def commit_placements(*, lease: Held, placements: list[Placement], now: datetime) -> set[int]:
    """Write one slice in one transaction of the lease holder; answers the row ids of the tasks that were
    placed. What does not fit any more is left out, a gang as a whole; the first ones come first.

    Raises PlacementClash (the caller then tries half by half, a gang as one) and LeaseLost.
    """
    if not placements:
        return set()
    try:
        with lease.transaction():
            return _commit(placements, now)
    except IntegrityError:  # somebody holds one of the ports, or the same attempt exists
        raise PlacementClash from None


def units(placements: Iterable[Placement]) -> list[list[Placement]]:
    """Placements as they belong together: the gangs, and each other one for itself, in the order of the first
    ones."""
    found: dict[str | int, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.gang or placement.task_id, []).append(placement)
    return list(found.values())


def _commit(placements: list[Placement], now: datetime) -> set[int]:
    books = open_books(
        tasks={one.task_id for one in placements},
        nodes={one.node_id for one in placements},
        cards={card for one in placements for card in one.cards},
        borrowed={card for one in placements if one.borrowed for card in one.cards},
        now=now,
    )
    lenders = {
        card: [share.id for share in books.ledger.shares(card) if share.lendable]
        for one in placements
        if one.borrowed
        for card in one.cards
    }
    fitting = [one for unit in units(placements) if _fits(unit, books) for one in unit]
    placed = {node_id: reason(Code.PLACED, node=name) for node_id, name in books.nodes.items()}
    moves = [_move(one, books.tasks[one.task_id], placed[one.node_id]) for one in fitting]
    if len(transition_many(moves, actor="scheduler", now=now, groups=books.groups)) != len(fitting):
        raise PlacementClash
    if fitting:
        _write(fitting, books, lenders, now)
    return {one.task_id for one in fitting}


def _fits(unit: list[Placement], books: Books) -> bool:
    """Whether all of these still fit; then they are booked."""
    tasks = [books.tasks.get(one.task_id) for one in unit]
    asked = [
        task.asks(one.node_id, one.cards, one.percent, borrowed=one.borrowed)
        for one, task in zip(unit, tasks, strict=True)
        if task is not None and task.version == one.version
    ]
    return len(asked) == len(unit) and books.ledger.book(asked) is None


def _move(placement: Placement, task: Waiting, why: Reason) -> Move:
    return Move(
        placement.task_id,
        placement.version,
        State.PENDING,
        State.SCHEDULING,
        why,
        settings.CLAIM_DEADLINE_S,
        {
            "attempt": task.attempt + 1,
            "node_id": placement.node_id,
            "phase": Phase.PLACED,
            "refusals": _NONE,
            "not_before": None,
        },
    )


def _write(placed: list[Placement], books: Books, lenders: dict[int, list[int]], now: datetime) -> None:
    attempts = [books.tasks[one.task_id].attempt + 1 for one in placed]
    claims = rows.insert_columns(
        Claim,
        {
            "task_id": [one.task_id for one in placed],
            "attempt": attempts,
            "node_id": [one.node_id for one in placed],
            "created_at": now,
        },
        len(placed),
    )
    shares = [
        (claim, card, one.percent) for claim, one in zip(claims, placed, strict=True) for card in one.cards
    ]
    if shares:
        claim_ids, cards, percents = (list(column) for column in zip(*shares, strict=True))
        held = {"claim_id": claim_ids, "card_id": cards, "percent": percents}
        rows.insert_columns(CardClaim, held, len(shares))
    ports = [
        (one.node_id, host_port, books.tasks[one.task_id].public_id, attempt, container_port)
        for attempt, one in zip(attempts, placed, strict=True)
        for container_port, host_port in one.host_ports
    ]
    if ports:
        names = ("node_id", "number", "owner", "attempt", "container_port")
        taken = dict(zip(names, map(list, zip(*ports, strict=True)), strict=True))
        rows.insert_columns(Port, taken, len(ports))
    if lenders:
        _lend(list(zip(claims, placed, strict=True)), lenders, now)
    if reserved := [one.task_id for one in placed if books.tasks[one.task_id].reserved]:
        Reservation.objects.filter(task__in=reserved).delete()


def _lend(placed: list[tuple[int, Placement]], lenders: dict[int, list[int]], now: datetime) -> None:
    """A loan of each sleeper's share to whoever was placed on it, as long as the lender's tenant allows."""
    shares = [share for ids in lenders.values() for share in ids]
    minutes = dict(
        CardClaim.objects.filter(pk__in=shares).values_list(
            "pk", "claim__task__group__tenant__loan_max_minutes"
        )
    )
    Loan.objects.bulk_create(
        Loan(
            card_id=share,
            borrower_id=claim,
            since=now,
            until=now + timedelta(seconds=_longest_s(minutes[share])),
        )
        for claim, one in placed
        if one.borrowed
        for card in one.cards
        for share in lenders[card]
    )


def _longest_s(minutes: int | None) -> float:
    return float(settings.LOAN_MAX_S) if minutes is None else minutes * 60.0


def note_refusals(*, lease: Held, refusals: dict[int, list[Reason]], now: datetime) -> None:
    """Keep why each waiting task (by row id) fits nowhere, where it changed (SCHED-10). Of one that room is
    kept for, that is said first."""
    if not refusals:
        return
    with lease.transaction():
        kept = dict(
            Reservation.objects.filter(task__in=refusals, until__gt=now).values_list("task_id", "until")
        )
        changed: dict[str, list[int]] = defaultdict(list)
        for task_id, code, present in Task.objects.filter(
            pk__among=refusals, state=State.PENDING
        ).values_list("pk", "reason_code", "refusals"):
            why = [room_kept(kept[task_id])] if task_id in kept else []
            told = rows_of([*why, *refusals[task_id]])
            if told and (told != present or code != told[0]["code"]):
                changed[json.dumps(told)].append(task_id)
        for same, ids in changed.items():  # many wait for the same reasons
            tell_why(ids, json.loads(same))


def room_kept(until: datetime) -> Reason:
    """Why a task waits that room is kept for."""
    return reason(Code.ROOM_KEPT, until=until.isoformat(timespec="seconds"))


def rows_of(reasons: Iterable[Reason]) -> list[dict[str, Any]]:
    """Reasons as a task's row keeps them."""
    return [{"code": str(why.code), "params": why.params} for why in reasons]


def tell_why(ids: Collection[int], reasons: list[dict[str, Any]]) -> None:
    """Let waiting tasks say these reasons, the first one as their own."""
    Task.objects.filter(pk__among=ids, state=State.PENDING).update(
        refusals=reasons, reason_code=reasons[0]["code"], reason_params=reasons[0]["params"]
    )
