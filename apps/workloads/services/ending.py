"""The end of an attempt: what it held is given back, and its task moves on.

Owns what is freed when, and where a task goes whose attempt is lost. Who finds that it ended is said
elsewhere (`reporting`, `losing`). Each call is inside of a transaction that holds the group's lock.
"""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Q

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import TaskReport
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core import hints
from apps.core.masking import mask
from apps.fleet.models import Port
from apps.workloads.models import CardClaim, Claim, Event, Loan, Task
from apps.workloads.policy.moves import RUNS_ON_NODE, is_wake_requested
from apps.workloads.policy.reconcile import next_rebuild
from apps.workloads.state import move_of, transition

# One that sleeps in good order has run well: its rebuilds count anew, and so does how long it runs.
ASLEEP_FIELDS: dict[str, Any] = {"running_since": None, "rebuilds": 0}


def live_claim(task: Task) -> Claim | None:
    """The claim of a task's current attempt, None where it holds nothing."""
    rows = Claim.objects.select_related("task__group").filter(released_at__isnull=True)
    return rows.filter(task=task, attempt=task.attempt).first()


def release(claim: Claim, *, now: datetime) -> None:
    """Free what an attempt held, once its node says that it is gone (SVC-12). Harmless to repeat."""
    Claim.objects.filter(pk=claim.pk, released_at__isnull=True).update(released_at=now)
    Port.objects.filter(owner=claim.task.public_id, attempt=claim.attempt).delete()
    _end_loans(claim, now)
    hints.kick("scheduling.place")
    if claim.task.group.deleted_at is not None or claim.task.state == State.FAILED:
        hints.kick("recovery.sweep")


def _end_loans(claim: Claim, now: datetime) -> None:
    """What it had borrowed is back, and its lenders are told; what it had lent is no loan any more: the
    borrower has the card alone from now on."""
    live = Loan.objects.filter(Q(borrower=claim) | Q(card__claim=claim), ended_at__isnull=True)
    ended = list(live.select_related("card__claim__task", "borrower__node"))
    if not ended:
        return
    Loan.objects.filter(pk__in=[loan.pk for loan in ended]).update(ended_at=now)
    lenders = {loan.card.claim.task: loan for loan in ended if loan.borrower_id == claim.pk}
    Event.objects.bulk_create(
        Event(
            group_id=lender.group_id,
            task=lender,
            attempt=lender.attempt,
            code=Code.LOAN_ENDED,
            actor=loan.borrower.node.public_id,
            at=now,
        )
        for lender, loan in lenders.items()
    )
    hints.kick("recovery.sweep")


def take_off(task: Task, why: Reason, *, actor: str, now: datetime, **fields: Any) -> bool:
    """Let a task wait for another place: its node is told to stop the present attempt, which holds its room
    until the end is confirmed. False where it has gone on meanwhile."""
    leaving = move_of(task, State.PENDING, why, phase=Phase.NONE, node_id=None, running_since=None, **fields)
    if not transition(leaving, actor=actor, now=now):
        return False
    release_untaken(task, now=now)
    if task.node is not None:
        hints.look(task.node.public_id)
    return True


def release_untaken(task: Task, *, now: datetime) -> None:
    """Free what a task's current attempt holds where no run of an agent took it on: nothing of it is on its
    node."""
    claim = live_claim(task)
    if claim is not None and claim.incarnation == "":
        release(claim, now=now)


def vacate(claim: Claim) -> None:
    """Nothing of an attempt is on its node any more, but its place, card and ports are kept for its task's
    wake (SLEEP-03). Harmless to repeat."""
    Claim.objects.filter(pk=claim.pk, released_at__isnull=True).update(incarnation="", claimed_at=None)


def hand_on(claim: Claim, *, now: datetime) -> None:
    """Give the place, cards and ports of a vacated claim to the next attempt of its task (SLEEP-03): what
    ended by itself is never started again by its agent, which may not have heard yet that it sleeps."""
    following = Claim.objects.create(
        task=claim.task, attempt=claim.attempt + 1, node_id=claim.node_id, created_at=now
    )
    shares = claim.cards.values_list("card_id", "percent")
    CardClaim.objects.bulk_create(
        CardClaim(claim=following, card_id=card, percent=percent) for card, percent in shares
    )
    held = Port.objects.filter(owner=claim.task.public_id, attempt=claim.attempt)
    held.update(attempt=following.attempt)
    release(claim, now=now)


def move_off(task: Task, why: Reason, *, actor: str, now: datetime) -> bool:
    """Move a task whose attempt is lost: an inference task waits for a new place while rebuilds are
    left, other work fails, what was leaving is stopped, what sleeps or falls asleep stays asleep unless it
    was asked to wake. An agent's restart costs no rebuild: its engines go with it and start again
    (AGENT-03); nor does a node that an operator deleted, nor a wake (SLEEP-04)."""
    state = State(task.state)
    if state == State.STOPPING:
        return transition(
            move_of(task, State.STOPPED, reason(Code.STOP_CONFIRMED), phase=Phase.NONE), actor=actor, now=now
        )
    if state == State.DRAINING and task.desired != Desired.STOP:
        asleep = move_of(task, State.SLEEPING, why, phase=Phase.NONE, **ASLEEP_FIELDS)
        return transition(asleep, actor=actor, now=now)
    waits_to_wake = is_wake_requested(state, Desired(task.desired))
    if state not in RUNS_ON_NODE and not waits_to_wake:
        return False
    free = waits_to_wake or why.code in (Code.AGENT_RESTARTED, Code.NODE_REMOVED)
    rebuild = task.rebuilds if free else rebuild_after(task, now)
    error = last_error(why, None, now)
    if state == State.DRAINING or task.group.task_type != TaskType.INFERENCE or rebuild is None:
        move = move_of(task, State.FAILED, why, phase=Phase.NONE, last_error=error)
    else:
        move = move_of(
            task,
            State.PENDING,
            why,
            phase=Phase.NONE,
            node_id=None,
            rebuilds=rebuild,
            running_since=None,
            last_error=error,
        )
        hints.kick("scheduling.place")
    return transition(move, actor=actor, now=now)


def rebuild_after(task: Task, now: datetime) -> int | None:
    """The number of a task's next rebuild (RECOV-01), None when they are spent."""
    stable_for_s = None
    if task.running_since is not None:
        end = now if task.state == State.RUNNING else task.state_since
        stable_for_s = (end - task.running_since).total_seconds()
    return next_rebuild(
        rebuilds=task.rebuilds,
        stable_for_s=stable_for_s,
        stable_s=settings.REBUILD_STABLE_S,
        limit=settings.REBUILD_MAX,
    )


def last_error(why: Reason | None, report: TaskReport | None, now: datetime) -> dict[str, Any]:
    """What is kept of the way an attempt failed, with what its report adds where there is one."""
    return {
        "code": str(why.code) if why else "",
        "params": why.params if why else {},
        "exit_code": report.exit_code if report else None,
        "log_lines": [mask(line)[:500] for line in report.last_log_lines[-20:]] if report else [],
        "at": now.isoformat(),
    }
