"""What the server does with files that an agent sends (AGENT-12): whose request it is, then `apps.files`.

A node hears one refusal, `not_this_nodes` 403, for another node's request and for none.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from agent.contract.codes import Code
from agent.contract.messages import FileAnswer, FileReply
from apps.agentlink import selectors
from apps.agentlink.limits import storable
from apps.core.errors import Conflict, Refusal
from apps.files import services
from apps.files.models import FileRequest
from apps.files.store import Body
from apps.fleet.models import Node
from apps.fleet.services.heartbeats import check_incarnation


class PieceQuery(msgspec.Struct):
    """What the address of a piece says of it; the body is the piece."""

    incarnation: str
    request_id: str
    offset: int
    size: int
    version: str
    sha256: str


def take_answer(node: Node, answer: FileAnswer, *, now: datetime) -> FileReply:
    """A folder's entries or a reason. Raises as `_request_of`."""
    row = _request_of(node, answer.incarnation, answer.request_id)
    if answer.reason is not None:
        params = {
            name: storable(value) if isinstance(value, str) else value
            for name, value in answer.reason.params.items()
        }
        answer.reason = msgspec.structs.replace(answer.reason, params=params)
    for entry in answer.entries:
        entry.name = storable(entry.name)
    return services.take_answer(row=row, answer=answer, now=now)


def take_piece(node: Node, query: Mapping[str, str], body: Body, *, now: datetime) -> FileReply:
    """A piece of a file. Raises msgspec.ValidationError for a query that is none, else as `_request_of`
    and `services.take_piece`."""
    asked = msgspec.convert({name: query[name] for name in query}, PieceQuery, strict=False)
    row = _request_of(node, asked.incarnation, asked.request_id)
    return services.take_piece(
        row=row,
        offset=asked.offset,
        size=asked.size,
        version=asked.version,
        sha256=asked.sha256,
        body=body,
        now=now,
    )


def _request_of(node: Node, incarnation: str, request_id: str) -> FileRequest:
    """Raises Conflict for a run that does not speak for the node, Refusal 403 `not_this_nodes`."""
    check_incarnation(incarnation)
    if selectors.newest_incarnation(node) != incarnation:
        raise Conflict(Code.CLAIM_SUPERSEDED)
    rows = FileRequest.objects.select_related("task__group__tenant")
    row = rows.filter(node=node, public_id=storable(request_id)).first()
    if row is None:
        raise Refusal(Code.NOT_THIS_NODES, 403)
    return row
