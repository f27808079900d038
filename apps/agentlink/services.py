"""What the server does with each agent message (AGENT-01, AGENT-02, AGENT-10).

Owns the order of the steps and the answers; fleet owns nodes, workloads owns tasks and claims,
streams owns logs. Never answers an empty list where it could not read one.
"""

import logging
from datetime import datetime

import msgspec
from django.db import InterfaceError, OperationalError

from agent.contract import wire
from agent.contract.codes import Code, Reason
from agent.contract.messages import (
    ClaimAnswer,
    ClaimGranted,
    ClaimRefused,
    ClaimRequest,
    DesiredTask,
    HeartbeatAnswer,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatUnchanged,
    JoinReply,
    JoinRequest,
    LogReply,
    LogRequest,
    ReportReply,
    ReportRequest,
    RunningReport,
    TaskReport,
)
from agent.contract.states import Desired
from apps.agentlink import foreign, selectors
from apps.agentlink.guessing import check_guesses, count_guess
from apps.agentlink.limits import LARGEST_ATTEMPT, MOST_REPORTS, check_attempt, check_count, storable
from apps.core import holds, texts
from apps.core.errors import Conflict, Refusal
from apps.files.selectors import orders_for
from apps.fleet import services as fleet
from apps.fleet.models import Node
from apps.fleet.services.alerts import raise_alert
from apps.fleet.services.heartbeats import check_incarnation
from apps.streams.services import append_log
from apps.workloads import services as workloads
from apps.workloads.selectors import desired_of

log = logging.getLogger("heteroflow.agentlink")

_TOKEN_REFUSALS = frozenset({"join_token_unknown", "join_token_expired", "join_token_used"})


def join(address: str, request: JoinRequest, *, now: datetime) -> JoinReply:
    """Make a machine a node. Raises Refusal 403 `join_refused` for an unusable token (its detail says
    why where the token is known), 429 after too many failures from the address."""
    check_guesses(address)
    try:
        node = fleet.redeem_join_token(request=request, now=now)
    except Refusal as error:
        if error.code not in _TOKEN_REFUSALS:
            raise
        count_guess(address)
        log.warning("a join from %s was refused: %s", address, error.code)
        raise Refusal("join_refused", 403, why=texts.say(error.code, error.params)) from None
    return JoinReply(node_id=node.public_id, name=node.name)


def heartbeat(node: Node, request: HeartbeatRequest, *, address: str, now: datetime) -> HeartbeatAnswer:
    """Note what a node says of itself, settle what is missing there, and say what it should run. It came
    from `address`.

    Raises Conflict `claim_superseded` for a run of the agent that does not speak for the node any more,
    Invalid for engines to be dialled where they are not the node's own.
    """
    outcome = fleet.record_heartbeat(node=node, request=request, address=address, now=now)
    if outcome.superseded:
        raise Conflict(Code.CLAIM_SUPERSEDED)
    if outcome.accepted:  # a repeated or overtaken list is not the present one
        workloads.reconcile_node(node=node, running=request.running, now=now)
    desired, orders = desired_of(node), orders_for(node)
    released = fleet.released_cards(node) if any(card.quarantined for card in request.cards) else []
    if holds.is_held(holds.REMOVALS):
        return HeartbeatReply("", False, removes_nothing(desired, request.running), orders, released)
    desired_hash = wire.hash_desired(desired)
    if desired_hash == request.desired_hash:
        return HeartbeatUnchanged(desired_hash, orders, released)
    return HeartbeatReply(desired_hash, True, desired, orders, released)


def removes_nothing(desired: list[DesiredTask], running: list[RunningReport]) -> list[DesiredTask]:
    """The part of a list that ends no container, for the time after a restore: nothing that is to stop,
    and no newer attempt of what runs there, since that would end the older one."""
    oldest: dict[str, int] = {}
    for report in running:
        oldest[report.task_id] = min(report.attempt, oldest.get(report.task_id, report.attempt))
    return [
        task
        for task in desired
        if task.desired is not Desired.STOP and task.attempt <= oldest.get(task.task_id, task.attempt)
    ]


def claim(node: Node, request: ClaimRequest, *, contract: int, now: datetime) -> ClaimAnswer:
    """Give an attempt to the one run of the one agent that may start it (AGENT-02). Raises Refusal 403
    `not_this_nodes` for an attempt that was not placed on this node."""
    check_incarnation(request.incarnation)
    check_attempt(request.attempt)
    answer = workloads.claim_task(
        node=node,
        incarnation=request.incarnation,
        task_id=storable(request.task_id),
        attempt=request.attempt,
        busy_ports=request.busy_ports,
        now=now,
    )
    if not isinstance(answer, Reason):
        return ClaimGranted(answer)
    if answer.code == Code.CLAIM_UNKNOWN:
        task_id = storable(request.task_id)
        foreign.refuse(node, task_id, request.attempt, what="claim", contract=contract, now=now)
    return ClaimRefused(answer)


def take_reports(node: Node, request: ReportRequest, *, contract: int, now: datetime) -> ReportReply:
    """Apply reports in the order of their sequence, each on its own (RECOV-05).

    A report that can't be applied is marked (log, alert on the node) and passed: sending it again
    would not help. A database that does not answer ends the run instead (503): the agent sends all
    of them again, and those that were applied change nothing the second time. Raises Refusal 403
    `not_this_nodes`, and applies none, where one is on an attempt that this node never held; Invalid for
    more than MOST_REPORTS.
    """
    check_incarnation(request.incarnation)
    check_count("reports", len(request.reports), MOST_REPORTS)
    reports = sorted(request.reports, key=lambda report: report.sequence)
    held = selectors.held_attempts(node, [storable(report.task_id) for report in reports])
    for report in reports:
        task_id = storable(report.task_id)
        possible = 0 <= report.attempt <= LARGEST_ATTEMPT  # else it is marked when it is its turn
        if possible and (task_id, report.attempt) not in held:
            foreign.refuse(node, task_id, report.attempt, what="report", contract=contract, now=now)
    for report in reports:
        _apply(node, request.incarnation, report, now)
    return ReportReply(up_to_sequence=reports[-1].sequence if reports else 0)


def _apply(node: Node, incarnation: str, report: TaskReport, now: datetime) -> None:
    try:
        check_attempt(report.attempt)
        workloads.apply_report(node=node, incarnation=incarnation, report=clean(report), now=now)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        task = storable(report.task_id)[:40]
        log.exception("report %s of %s on %s is not applied", report.sequence, node.public_id, task)
        raise_alert(node=node, code="report_failed", now=now, task=task, why=type(error).__name__)


def clean(report: TaskReport) -> TaskReport:
    """The report with texts that every database can keep."""
    return msgspec.structs.replace(
        report,
        task_id=storable(report.task_id),
        reason=report.reason and _clean(report.reason),
        last_log_lines=[storable(line) for line in report.last_log_lines],
        notes=[_clean(note) for note in report.notes],
    )


def _clean(why: Reason) -> Reason:
    params = {storable(k): storable(v) if isinstance(v, str) else v for k, v in why.params.items()}
    return Reason(why.code, params)


def take_log(node: Node, request: LogRequest, *, contract: int, now: datetime) -> LogReply:
    """Append a piece of a log; the answer's offset is where the next piece must begin (AGENT-10).

    Raises Conflict for a run that does not speak for the node, Refusal 403 `not_this_nodes` (404
    `claim_unknown` to contract 1) for an attempt that this node never held.
    """
    check_incarnation(request.incarnation)
    check_attempt(request.attempt)
    if selectors.newest_incarnation(node) != request.incarnation:
        raise Conflict(Code.CLAIM_SUPERSEDED)
    task_id = storable(request.task_id)
    task = selectors.held_task(node, task_id, request.attempt)
    if task is None:
        foreign.refuse(node, task_id, request.attempt, what="log", contract=contract, now=now)
        raise Refusal(Code.CLAIM_UNKNOWN, 404)
    next_offset = append_log(
        task=task,
        attempt=request.attempt,
        offset=request.offset,
        text=request.text,
        lost_from=request.lost_from,
        now=now,
    )
    return LogReply(next_offset)
