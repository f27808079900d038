"""Dials nodes' doors, to learn whether the gateway would get through (AGENT-16).

Owns the network part of the dial-back and nothing else: no rows, no transaction. Goes the gateway's
way (TLS, pinned certificate, a signed line) but for the engine: a ping asks for none.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.contract.door import NO, build_ping, check_pong, derive_key
from apps.core.pinning import has_certificate, pinning_context

log = logging.getLogger("heteroflow.fleet")

_LONGEST_ANSWER = 1024
_SECOND_TRY_AFTER_S = 0.3

UNREACHABLE = "door_unreachable"
TIMED_OUT = "door_timed_out"
OTHER_CERTIFICATE = "door_other_certificate"
REFUSES = "door_refuses"
NO_DOOR = "door_no_door"


@dataclass(frozen=True, slots=True)
class DoorRow:
    """A door to dial: the node's row id, what its heartbeat said, and what its key comes from."""

    node_id: int
    dial: dict[str, Any]
    secret_sha256: str = field(repr=False)
    skew_s: float = 0.0  # its clock less ours


def dial_doors(rows: Sequence[DoorRow], *, timeout_s: float) -> dict[int, str]:
    """Dial all of these at once; by node row id "" for an open door, else the code of what is wrong.

    Comes back within `timeout_s` and a little. Call it outside of every transaction. A row that can't
    be dialled at all is logged and left out.
    """
    loop = asyncio.new_event_loop()
    try:
        # Not asyncio.run: its end would wait for look-ups of names that hang.
        found = loop.run_until_complete(_dial_all(rows, timeout_s))
    finally:
        loop.close()
    return found


async def _dial_all(rows: Sequence[DoorRow], timeout_s: float) -> dict[int, str]:
    answers = await asyncio.gather(*(_dial(row, timeout_s) for row in rows), return_exceptions=True)
    found: dict[int, str] = {}
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, str):
            found[row.node_id] = answer
        else:
            log.error("the door of node row %s could not be dialled", row.node_id, exc_info=answer)
    return found


async def _dial(row: DoorRow, timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            try:
                return await _ping(row)
            except OSError:
                # Once more: one lost connection must not keep work away from a node for a minute.
                await asyncio.sleep(_SECOND_TRY_AFTER_S)
                return await _ping(row)
    except TimeoutError:
        return TIMED_OUT
    except OSError:
        return UNREACHABLE


async def _ping(row: DoorRow) -> str:
    """Raises OSError."""
    key = derive_key(row.secret_sha256)
    nonce = secrets.token_hex(16)
    reader, writer = await asyncio.open_connection(
        str(row.dial["host"]), int(row.dial["port"]), ssl=pinning_context(), limit=_LONGEST_ANSWER
    )
    try:
        if not has_certificate(writer.transport, str(row.dial["certificate_sha256"])):
            return OTHER_CERTIFICATE
        writer.write(build_ping(key, now_s=time.time() + row.skew_s, nonce=nonce))
        try:
            answer = await reader.readline()
        except ValueError:  # longer than any answer of ours
            return NO_DOOR
    finally:
        writer.transport.abort()
    if check_pong(key, answer, nonce):
        return ""
    return REFUSES if answer == NO else NO_DOOR
