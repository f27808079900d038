"""What a node says of itself, written only where it changed (AGENT-01, AGENT-02).

Owns the rule which run of an agent speaks for a node. Age is counted by the server's receive time
alone; the node's own clock gives nothing but a warning. Tasks and claims are never touched here.
"""

import logging
import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction

from agent.contract.codes import Code
from agent.contract.messages import DialTarget, DoorTarget, HeartbeatRequest
from apps.core import hints, versions
from apps.core.errors import FieldError, Invalid, Refusal
from apps.core.loopback import is_loopback
from apps.fleet.models import DoorState, Liveness, Node, Port
from apps.fleet.selectors import is_online
from apps.fleet.services import cards
from apps.fleet.services.alerts import raise_alert
from apps.fleet.services.doors import forget_door
from apps.fleet.services.load import LOAD, write_load
from apps.fleet.services.measures import count_or_none, fit, storable_texts

log = logging.getLogger("heteroflow.fleet")

_ENGINES_MAX = 32
_IMAGES_MAX = 256
_PREFIXES_MAX = 64
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")  # a name, or an address of either family
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_INCARNATION = 64
_LARGEST_PORT = 65535
_PORTS_MAX = 4096  # kept of a node; a range is seldom larger


@dataclass(frozen=True)
class HeartbeatOutcome:
    """What became of one heartbeat.

    `accepted`: it was the newest of the run that speaks for the node, and was written.
    `newer_incarnation`: with it another run took over; claims of the run before are void.
    `superseded`: it came from a run that no longer speaks for the node; nothing of it counts.
    Neither accepted nor superseded: a repeat or an overtaken one; answer it, write nothing.
    `skew_s`: the node's clock minus the server's, in seconds; None where it could not be told.
    """

    accepted: bool
    newer_incarnation: bool = False
    superseded: bool = False
    skew_s: float | None = None


def record_heartbeat(
    *, node: Node, request: HeartbeatRequest, address: str, now: datetime
) -> HeartbeatOutcome:
    """Write liveness, changed facts, cards and samples of an authenticated node.

    `now` is when the server received it, `address` whence ("" = not known). A node that comes back after
    silence is simply alive again. Raises Refusal 403 `machine_mismatch` (and leaves an alert) when another
    machine uses the node's credential, Invalid for an unusable run, sequence or address.
    """
    if request.machine_id != node.machine_id:
        # In a transaction of its own: the refusal that follows must not take the alert with it.
        raise_alert(node=node, code="machine_mismatch", now=now)
        log.warning("node %s: another machine uses its credential and was refused", node.public_id)
        raise Refusal("machine_mismatch", 403, node=node.public_id)
    if request.runtime_silent:
        raise_alert(node=node, code="runtime_silent", now=now)
        if not Liveness.objects.filter(node=node, incarnation=request.incarnation).exists():
            return HeartbeatOutcome(False)  # nobody knows what runs there: it stays as silent as it is
    _check(request, address)
    skew_s = _skew(request.sent_at, now)
    with transaction.atomic():
        known = Liveness.objects.select_for_update(of=("self",)).annotate(**LOAD)
        live, _ = known.get_or_create(node=node)
        same_run = live.incarnation == request.incarnation
        if same_run and request.sequence <= live.heartbeat_sequence:
            return HeartbeatOutcome(False, skew_s=skew_s)
        if not same_run and not _takes_over(live, request, now):
            return HeartbeatOutcome(False, superseded=True, skew_s=skew_s)
        _write_liveness(live, request, now, skew_s, same_run)
        if _is_skewed(skew_s) and not _is_skewed(live.clock_skew_s):
            raise_alert(node=node, code=Code.CLOCK_SKEW, now=now, skew_s=skew_s)
        follows = _may_follow(live, now)
        changed = _write_facts(node, request, address_too=follows or not node.dial)
        cards_changed = cards.write_cards(node, request.cards, now, unknown=request.cards_unknown)
        load_changed = write_load(node, live, request.host, now)
        has_door = isinstance(request.dial, DoorTarget)
        clock_moved = has_door and follows and _follow_clock(live, skew_s)
        ports_changed = _follow_ports(live, request)
        if "dial" in changed or clock_moved:
            versions.bump()
            Liveness.objects.filter(pk=live.pk).update(followed_at=now)
        shut = clock_moved and live.door_state == DoorState.CLOSED
        if has_door and ("dial" in changed or not same_run or shut):
            forget_door(live, now)
        if changed or cards_changed or ports_changed or load_changed:
            hints.kick("scheduling.place")
    return HeartbeatOutcome(True, newer_incarnation=not same_run, skew_s=skew_s)


def _takes_over(live: Liveness, request: HeartbeatRequest, now: datetime) -> bool:
    """Another run speaks for the node when it started later (AGENT-02), or once the present one is
    silent: a clock that was set back must not lock a machine out for good."""
    if not live.incarnation or not is_online(live.last_seen_at, now):
        return True
    return request.started_at > live.incarnation_started_at


def _write_liveness(
    live: Liveness, request: HeartbeatRequest, now: datetime, skew_s: float | None, same_run: bool
) -> None:
    values: dict[str, Any] = {
        "heartbeat_sequence": request.sequence,
        "last_seen_at": now,
        "clock_skew_s": skew_s,
        "declared_lost_at": None,
    }
    if not same_run:
        values |= {
            "incarnation": request.incarnation,
            "incarnation_started_at": request.started_at,
            "report_sequence": 0,
        }
    Liveness.objects.filter(pk=live.pk).update(**values)


def _may_follow(live: Liveness, now: datetime) -> bool:
    """Whether another address or clock of the node may count now. Each is a new table for every gateway, and
    a node could send another one with each heartbeat; the next heartbeat says it again."""
    if live.followed_at is None:
        return True
    return now - live.followed_at >= timedelta(seconds=settings.NODE_FOLLOW_S)


def _follow_clock(live: Liveness, skew_s: float | None) -> bool:
    """Whether the node's clock has moved, against ours, so far that lines to its door are dated otherwise
    from now on. In steps: each is a new table for every gateway, and a late heartbeat looks like a slow
    clock."""
    if skew_s is None or abs(skew_s - live.door_skew_s) <= settings.DOOR_SKEW_STEP_S:
        return False
    Liveness.objects.filter(pk=live.pk).update(door_skew_s=skew_s)
    return True


def _follow_ports(live: Liveness, request: HeartbeatRequest) -> bool:
    """Whether strangers hold other ports of the node than before; placing passes those over (SVC-12)."""
    found = {port for port in request.ports_in_use if 0 < port <= _LARGEST_PORT}
    if found:
        found.difference_update(Port.objects.filter(node=live.node_id).values_list("number", flat=True))
    foreign = sorted(found)[:_PORTS_MAX]
    if foreign == live.foreign_ports:
        return False
    Liveness.objects.filter(pk=live.pk).update(foreign_ports=foreign)
    return True


def _write_facts(node: Node, request: HeartbeatRequest, *, address_too: bool) -> set[str]:
    """Update the node's row where a fact differs from it; returns the names of changed fields."""
    facts = {
        "runtime": request.runtime.value,
        "agent_version": fit(request.agent_version, 50) or node.agent_version,
        "cpu_count": count_or_none(request.host.cpu_count),
        "memory_total_mb": count_or_none(request.host.memory_total_mb),
        "dial": msgspec.to_builtins(request.dial),
        "engines": _engines(request),
        "port_first": request.port_range[0],
        "port_last": request.port_range[1],
        "volume_prefixes": _prefixes(request),
        "host_ipc": request.host_ipc,
        "in_container": request.host.in_container,
        "images": storable_texts(request.images or [], most=_IMAGES_MAX, longest=300),
    }
    if not 1 <= request.port_range[0] <= request.port_range[1] <= 65535:
        log.warning("node %s reports an unusable port range, the present one stays", node.public_id)
        del facts["port_first"], facts["port_last"]
    if not address_too:
        del facts["dial"]
    changed = {name: value for name, value in facts.items() if getattr(node, name) != value}
    if changed:
        Node.objects.filter(pk=node.pk).update(**changed)
        for name, value in changed.items():
            setattr(node, name, value)
    return set(changed)


def _engines(request: HeartbeatRequest) -> list[dict[str, str | None]]:
    return [
        {
            "name": fit(engine.name, 50),
            "version": fit(engine.version, 50) if engine.version is not None else None,
            "image": fit(engine.image, 300) if engine.image is not None else None,
        }
        for engine in request.engines[:_ENGINES_MAX]
    ]


def _prefixes(request: HeartbeatRequest) -> list[str] | None:
    if request.volume_prefixes is None:
        return None
    return storable_texts(request.volume_prefixes, most=_PREFIXES_MAX, longest=1000)


def check_incarnation(incarnation: str) -> None:
    """Raises Invalid for a blank or long one, or one with control characters."""
    if not incarnation.strip():
        raise Invalid([FieldError("incarnation", "blank")])
    if len(incarnation) > _LONGEST_INCARNATION:
        raise Invalid([FieldError("incarnation", "too_long", None, {"max": _LONGEST_INCARNATION})])
    if not incarnation.isprintable():
        raise Invalid([FieldError("incarnation", "bad_characters")])


def _check(request: HeartbeatRequest, address: str) -> None:
    check_incarnation(request.incarnation)
    errors: list[FieldError] = []
    if not 0 <= request.sequence < 2**63:
        sent, most = str(request.sequence), str(2**63 - 1)
        errors.append(FieldError("sequence", "out_of_range", sent, {"min": 0, "max": most}))
    if not math.isfinite(request.started_at):
        errors.append(FieldError("started_at", "wrong_type", None, {"expected": "epoch seconds"}))
    errors += _check_dial(request.dial, address)
    if errors:
        raise Invalid(errors)


def _check_dial(dial: DialTarget | DoorTarget, address: str) -> list[FieldError]:
    """The host becomes part of addresses that the gateway dials. Engines are dialled directly on the
    server's own machine and its loopback only (AGENT-16): a node elsewhere would turn the gateway, without
    any key of a door, against what is near the server."""
    errors: list[FieldError] = []
    if not _HOST.fullmatch(dial.host):
        errors.append(FieldError("dial.host", "bad_characters"))
    elif isinstance(dial, DialTarget) and not (is_loopback(dial.host) and is_loopback(address)):
        said_from = address or "an address that is not known"
        errors.append(FieldError("dial.host", "dial_not_local", dial.host, {"address": said_from}))
    if isinstance(dial, DoorTarget):
        if not 1 <= dial.port <= 65535:
            sent = str(dial.port)[:20]
            errors.append(FieldError("dial.port", "out_of_range", sent, {"min": 1, "max": 65535}))
        if not _SHA256.fullmatch(dial.certificate_sha256):
            expected = "64 hexadecimal digits in lower case"
            errors.append(FieldError("dial.certificate_sha256", "wrong_type", None, {"expected": expected}))
    return errors


def _skew(sent_at: float, now: datetime) -> float | None:
    skew_s = sent_at - now.timestamp()
    return round(skew_s, 3) if math.isfinite(skew_s) else None


def _is_skewed(skew_s: float | None) -> bool:
    """Off enough for a warning, and never for more than that."""
    return skew_s is not None and abs(skew_s) > settings.CLOCK_SKEW_WARN_S
