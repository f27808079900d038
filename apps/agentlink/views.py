"""The agent protocol's addresses: one plain view a message (docs/contract.md)."""

from django.http import HttpRequest

from agent.contract.messages import (
    ClaimAnswer,
    ClaimRequest,
    FileAnswer,
    FileReply,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LogReply,
    LogRequest,
    ReportReply,
    ReportRequest,
)
from apps.agentlink import files, services
from apps.agentlink.exchange import Caller, bytes_from_node, from_node, from_stranger
from apps.core.clock import utc_now


@from_stranger(JoinRequest)
def join(address: str, request: JoinRequest) -> JoinReply:
    """POST /agent/v1/join"""
    return services.join(address, request, now=utc_now())


@from_node(HeartbeatRequest)
def heartbeat(caller: Caller, request: HeartbeatRequest) -> HeartbeatAnswer:
    """POST /agent/v1/heartbeat"""
    return services.heartbeat(caller.node, request, address=caller.address, now=utc_now())


@from_node(ClaimRequest)
def claims(caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """POST /agent/v1/claims"""
    return services.claim(caller.node, request, contract=caller.contract, now=utc_now())


@from_node(ReportRequest)
def reports(caller: Caller, request: ReportRequest) -> ReportReply:
    """POST /agent/v1/reports"""
    return services.take_reports(caller.node, request, contract=caller.contract, now=utc_now())


@from_node(LogRequest)
def logs(caller: Caller, request: LogRequest) -> LogReply:
    """POST /agent/v1/logs"""
    return services.take_log(caller.node, request, contract=caller.contract, now=utc_now())


@from_node(FileAnswer)
def file_answers(caller: Caller, request: FileAnswer) -> FileReply:
    """POST /agent/v1/file-answers"""
    return files.take_answer(caller.node, request, now=utc_now())


@bytes_from_node
def file_pieces(caller: Caller, request: HttpRequest) -> FileReply:
    """POST /agent/v1/files?incarnation=&request_id=&offset=&size=&version=&sha256="""
    return files.take_piece(caller.node, request.GET, request, now=utc_now())
