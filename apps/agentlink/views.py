"""The agent protocol's addresses: one plain view a message (docs/contract.md)."""

from agent.contract.messages import (
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LogReply,
    LogRequest,
    ReportReply,
    ReportRequest,
)
from apps.agentlink import services
from apps.agentlink.exchange import from_node, from_stranger
from apps.core.clock import utc_now
from apps.fleet.models import Node


@from_stranger(JoinRequest)
def join(address: str, request: JoinRequest) -> JoinReply:
    """POST /agent/v1/join"""
    return services.join(address, request, now=utc_now())


@from_node(HeartbeatRequest)
def heartbeat(node: Node, request: HeartbeatRequest) -> HeartbeatAnswer:
    """POST /agent/v1/heartbeat"""
    return services.heartbeat(node, request, now=utc_now())


@from_node(ClaimRequest)
def claims(node: Node, request: ClaimRequest) -> ClaimAnswer:
    """POST /agent/v1/claims"""
    return services.claim(node, request, now=utc_now())


@from_node(ReportRequest)
def reports(node: Node, request: ReportRequest) -> ReportReply:
    """POST /agent/v1/reports"""
    return services.take_reports(node, request, now=utc_now())


@from_node(LogRequest)
def logs(node: Node, request: LogRequest) -> LogReply:
    """POST /agent/v1/logs"""
    return services.take_log(node, request, now=utc_now())
