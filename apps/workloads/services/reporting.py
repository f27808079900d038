"""What agents tell of their attempts: applied once, in order, newest run of the agent only."""

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import RunningReport, TaskReport
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.core import versions
from apps.fleet.models import Liveness, Node
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.reconcile import (
    Outcome,
    Standing,
    is_missing,
    judge_absence,
    judge_report,
)
from apps.workloads.services.claiming import take_on
from apps.workloads.services.ending import ASLEEP_FIELDS, last_error, move_off, release, vacate
from apps.workloads.state import lock_groups, move_of, transition

log = logging.getLogger("heteroflow.workloads")

ENDS = frozenset({Observed.EXITED, Observed.GONE})


def apply_report(*, node: Node, incarnation: str, report: TaskReport, now: datetime) -> None:
    """Apply one report. Late, repeated and foreign ones change nothing."""
    with transaction.atomic():
        lock_groups(Task.objects.filter(public_id=report.task_id).values_list("pk", flat=True))
        fresh = Liveness.objects.filter(
            node=node, incarnation=incarnation, report_sequence__lt=report.sequence
        ).update(report_sequence=report.sequence)
        if not fresh:
            return
        claim = (
            Claim.objects.select_related("task__group")
            .filter(
                task__public_id=report.task_id, attempt=report.attempt, node=node, released_at__isnull=True
            )
            .first()
        )
        if claim is not None and is_back(claim, listed=report.observed not in ENDS):
            take_on(claim, incarnation, now)  # it was held to be gone
            claim = Claim.objects.select_related("task__group").get(pk=claim.pk)
        if claim is None or claim.incarnation != incarnation:
            # After each end: the report of the end freed the claim, and the one that it is gone comes later.
            holder = "nobody" if claim is None else claim.incarnation or "no run yet"
            log.debug(
                "report on %s/%s by %s changes nothing: its claim is held by %s",
                *(report.task_id, report.attempt, node.public_id, holder),
            )
            return
        if report.attempt != claim.task.attempt:
            if report.observed in ENDS:
                release(claim, now=now)
            return
        outcome = judge_report(standing_of(claim.task), report)
        _carry_out(claim, outcome, report, actor=node.public_id, now=now)
        note_moments(claim.task, report.notes, by=node.public_id, now=now)


def standing_of(task: Task) -> Standing:
    """What the server knows of a task, for the rules."""
    return Standing(
        state=State(task.state),
        task_type=TaskType(task.group.task_type),
        phase=Phase(task.phase),
        desired=Desired(task.desired),
        reason_code=task.reason_code,
        placed=task.node_id is not None,
    )


def _carry_out(
    claim: Claim, outcome: Outcome, report: TaskReport | None, *, actor: str, now: datetime
) -> None:
    task = claim.task
    if outcome.to is not None:
        why = outcome.reason or reason(Code.INTERNAL)
        if outcome.via is not None:
            transition(
                move_of(task, outcome.via, reason(Code.READY), running_since=now), actor=actor, now=now
            )
            task.refresh_from_db()
        fields: dict[str, Any] = {"phase": outcome.phase or Phase.NONE}
        if outcome.to == State.RUNNING:
            fields |= {"running_since": now, "node_refusals": {}, "deadline_s": run_timeout_s(task)}
        if outcome.to == State.PENDING:
            fields |= {"node_id": None, "running_since": None}
        if outcome.to == State.SLEEPING:
            fields |= ASLEEP_FIELDS
        if outcome.to == State.FAILED:
            fields["last_error"] = last_error(outcome.reason, report, now)
        transition(move_of(task, outcome.to, why, **fields), actor=actor, now=now)
    else:
        _adjust(task, outcome, actor=actor, now=now)
    if outcome.vacant:
        vacate(claim)
    if outcome.anew:  # from now on its node's lists get their grace again
        Claim.objects.filter(pk=claim.pk, released_at__isnull=True).update(claimed_at=now)
    if outcome.over:
        release(claim, now=now)


def _adjust(task: Task, outcome: Outcome, *, actor: str, now: datetime) -> None:
    """Phase and reason of a task whose state stays."""
    values: dict[str, Any] = {}
    if outcome.phase is not None and outcome.phase != task.phase:
        values["phase"] = outcome.phase
    if outcome.reason is not None:
        values |= {"reason_code": outcome.reason.code, "reason_params": outcome.reason.params}
        note_moments(task, [outcome.reason], by=actor, now=now)
    if values:
        Task.objects.filter(pk=task.pk, attempt=task.attempt).update(**values)
    if task.state == State.RUNNING and "phase" in values:
        versions.bump()


def note_moments(task: Task, moments: Iterable[Reason], *, by: str, now: datetime) -> None:
    """Events of a task that are no moves: what was done otherwise than asked, what is waited for."""
    Event.objects.bulk_create(
        Event(
            group_id=task.group_id,
            task=task,
            attempt=task.attempt,
            code=moment.code,
            params=moment.params,
            actor=by,
            at=now,
        )
        for moment in moments
    )


def run_timeout_s(task: Task) -> float | None:
    """For how many seconds a task may run; None for inference, which has no end (LIFE-03)."""
    if task.group.task_type == TaskType.INFERENCE:
        return None
    return float(task.timeout_seconds or settings.RUN_TIMEOUT_S)


def is_back(claim: Claim, *, listed: bool) -> bool:
    """Whether its node shows a container that was held to be gone while its task sleeps."""
    sleeps = claim.attempt == claim.task.attempt and claim.task.state == State.SLEEPING
    return listed and claim.incarnation == "" and sleeps


# What a heartbeat's list is compared with; the rest, secrets among it, is not read for it.
_RECONCILED_BY = (
    *("task_id", "attempt", "incarnation", "claimed_at"),
    *("task__public_id", "task__attempt", "task__state", "task__group_id"),
)


def reconcile_node(*, node: Node, running: Iterable[RunningReport], now: datetime) -> int:
    """Compare a heartbeat's complete list with the node's claims; answers how many were over.

    An attempt that this run of the agent took over (Docker keeps containers alive) becomes its own.
    """
    listed = {(report.task_id, report.attempt): report for report in running}
    incarnation = Liveness.objects.values_list("incarnation", flat=True).get(node=node)
    ended = 0
    claims = Claim.objects.filter(node=node, released_at__isnull=True)
    for claim in claims.select_related("task").only(*_RECONCILED_BY):
        here = listed.get((claim.task.public_id, claim.attempt))
        if is_back(claim, listed=here is not None):
            with transaction.atomic():
                lock_groups([claim.task_id])
                take_on(claim, incarnation, now)
            continue
        if here is not None and claim.incarnation not in ("", incarnation):
            Claim.objects.filter(pk=claim.pk, released_at__isnull=True).update(incarnation=incarnation)
            continue
        missing = is_missing(
            listed=here is not None,
            claimed_by=claim.incarnation,
            incarnation=incarnation,
            claimed_for_s=(now - claim.claimed_at).total_seconds() if claim.claimed_at else 0.0,
            grace_s=settings.RECONCILE_GRACE_S,
        )
        if missing:
            code = Code.CONTAINER_GONE if claim.incarnation == incarnation else Code.AGENT_RESTARTED
            ended += end_attempt(claim, reason(code), now=now, actor=node.public_id)
    return ended


def end_attempt(claim: Claim, why: Reason, *, now: datetime, actor: str) -> int:
    """An attempt is known to be gone from its node without a report of its own: free it and move its
    task on (rebuilt, stopped or failed), or keep its place where it sleeps. 0 where nothing changed."""
    with transaction.atomic():
        lock_groups([claim.task_id])
        fresh = (
            Claim.objects.select_related("task__group").filter(pk=claim.pk, released_at__isnull=True).first()
        )
        if fresh is None:
            return 0
        current = fresh.attempt == fresh.task.attempt and why.code != Code.NODE_REMOVED
        kept = judge_absence(standing_of(fresh.task)) if current else None
        if kept is not None:
            _carry_out(fresh, kept, None, actor=actor, now=now)
            return 1
        release(fresh, now=now)
        if fresh.attempt == fresh.task.attempt:
            move_off(fresh.task, why, actor=actor, now=now)
    return 1
