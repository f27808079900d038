"""A node's cards as its last heartbeat names them: identity and capacity in Card, readings in CardSample;
and the quarantine of a card whose memory an ended attempt still holds (AGENT-06).

A card that left the heartbeat stays as a row that is not present. Readings are written only when
they changed enough, so that a quiet fleet writes next to nothing. What one node may name is bounded: each
card is a row that placing reads, and one that vanishes is an alert.
"""

import logging
from datetime import datetime
from typing import Any

from django.db import transaction

from agent.contract.machine import MOST_PROCESSES
from agent.contract.messages import CardReport
from apps.core import hints
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.fleet.models import Card, CardSample, Node
from apps.fleet.services.changes import note_node
from apps.fleet.services.measures import changed_enough, count_or_none, degrees_or_none, fit, memory_or_none
from apps.tenants.scope import Viewer

log = logging.getLogger("heteroflow.fleet")
_CARDS_MAX = 256  # of one heartbeat: more than any machine has, in slices too
_ROWS_MAX = 1024  # of one node, those that left among them
# Utilization and temperature move all the time; only these steps are worth a write.
_UTILIZATION_STEP = 10
_TEMPERATURE_STEP = 5
_WARM_C = 70  # from here on calls are led elsewhere by it (GW-07), so that it is told more exactly
_WARM_STEP = 2
_HOLDERS_MAX = 32
_LONGEST_ID = 40


def write_cards(node: Node, reports: list[CardReport], now: datetime, *, unknown: bool = False) -> bool:
    """Upsert the reported cards, mark the others as gone, write changed readings.

    `unknown`: the driver gave no answer, so a card that is not reported has not vanished.
    Returns whether anything changed that placing depends on.
    """
    known = {card.uuid: card for card in Card.objects.filter(node=node).select_related("sample")}
    reported: dict[str, CardReport] = {}
    room = _ROWS_MAX - len(known)
    too_many = len(reports) > _CARDS_MAX
    for report in reports[:_CARDS_MAX]:
        uuid = fit(report.uuid, 100)
        if not uuid or uuid in reported:
            continue
        if uuid not in known:
            room -= 1
            if room < 0:
                too_many = True
                continue
        reported[uuid] = report
    if too_many:
        log.warning("node %s names %s cards: too many, some are left out", node.public_id, len(reports))
    changed = False
    for uuid, report in reported.items():
        card = known.get(uuid)
        changed |= _write_card(node, card, uuid, report, now)
    gone = [card.pk for uuid, card in known.items() if card.present and uuid not in reported]
    if gone and not unknown:
        Card.objects.filter(pk__in=gone).update(present=False)
    return changed or bool(gone and not unknown)


def _write_card(node: Node, card: Card | None, uuid: str, report: CardReport, now: datetime) -> bool:
    capacity = memory_or_none(report.vram_total_mb)
    identity: dict[str, Any] = {
        "index": count_or_none(report.index) or 0,
        "vendor": fit(report.vendor, 30),
        "model": fit(report.model, 100),
        "mig_capable": report.mig_capable,
        "mps_capable": report.mps_capable,
        "link_group": count_or_none(report.link_group),
        "pcie_root": fit(report.pcie_root, 50),
        "present": True,
        **_quarantine(card, report, now),
    }
    # A capacity or version that could not be read now has not changed.
    if capacity is not None:
        identity["vram_total_mb"] = capacity
    if report.driver_version is not None:
        identity["driver_version"] = fit(report.driver_version, 50)
    if report.compute_capability is not None:
        identity["compute_capability"] = fit(report.compute_capability, 10)

    if card is None:
        card = Card.objects.create(node=node, uuid=uuid, **identity)
        _write_sample(card, None, report, now)
        return True
    changed = {name: value for name, value in identity.items() if getattr(card, name) != value}
    if changed:
        Card.objects.filter(pk=card.pk).update(**changed)
        card.vram_total_mb = changed.get("vram_total_mb", card.vram_total_mb)
    measured = _write_sample(card, getattr(card, "sample", None), report, now)
    return bool(changed) or measured


def _quarantine(card: Card | None, report: CardReport, now: datetime) -> dict[str, Any]:
    """An agent that says no more of it has ended it, and with it an operator's wish that it should."""
    if not report.quarantined:
        return {"quarantined_at": None, "held_by": [], "release_asked_at": None}
    holders = [
        {"pid": one.pid, "used_mb": memory_or_none(one.used_mb), "task_id": fit(one.task_id, _LONGEST_ID)}
        for one in report.held_by[:_HOLDERS_MAX]
    ]
    return {"quarantined_at": (card.quarantined_at if card else None) or now, "held_by": holders}


def released_cards(node: Node) -> list[str]:
    """UUIDs of cards whose quarantine an operator has ended and the node's agent has not yet."""
    asked = Card.objects.filter(node=node, release_asked_at__isnull=False, quarantined_at__isnull=False)
    return list(asked.order_by("index").values_list("uuid", flat=True))


def release_cards(*, actor: Viewer, node: Node, uuid: str | None = None, now: datetime) -> int:
    """End the quarantine of a node's card, or of all of them, whatever is held there: its agent does so with
    its next heartbeat. Answers how many. Raises Forbidden for anyone but an operator, Invalid for a card that
    the node has not, Conflict `card_not_quarantined`."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        cards = Card.objects.select_for_update().filter(node=node)
        if uuid is not None:
            cards = cards.filter(uuid=uuid)
            if not cards.exists():
                raise Invalid([FieldError("card", "no_such_name", uuid)])
        held = list(cards.filter(quarantined_at__isnull=False))
        if not held:
            raise Conflict("card_not_quarantined", node=node.name)
        Card.objects.filter(pk__in=[card.pk for card in held]).update(release_asked_at=now)
        before = {card.uuid: card.held_by for card in held}
        note_node(actor, "release_cards", node, before=before, after={})
    hints.look(node.public_id)
    return len(held)


def _write_sample(card: Card, sample: CardSample | None, report: CardReport, now: datetime) -> bool:
    """Returns whether a reading of memory changed: the only ones that placing depends on."""
    values: dict[str, Any] = {
        "vram_used_mb": memory_or_none(report.vram_used_mb),
        "foreign_mb": memory_or_none(report.foreign_mb),
        "foreign": _stranger(report),
        "owned_mb": _owned_mb(report),
        "temperature_c": degrees_or_none(report.temperature_c),
        "utilization_percent": count_or_none(report.utilization_percent),
    }
    if sample is None:
        CardSample.objects.create(card=card, sampled_at=now, **values)
        return True
    memory = (
        changed_enough(sample.vram_used_mb, values["vram_used_mb"], card.vram_total_mb)
        or changed_enough(sample.foreign_mb, values["foreign_mb"], card.vram_total_mb)
        or _shares_changed(sample.owned_mb, values["owned_mb"], card.vram_total_mb)
    )
    other = _stepped(
        sample.utilization_percent, values["utilization_percent"], _UTILIZATION_STEP
    ) or _stepped(
        sample.temperature_c,
        values["temperature_c"],
        _WARM_STEP if (values["temperature_c"] or 0) >= _WARM_C else _TEMPERATURE_STEP,
    )
    if memory or other:
        CardSample.objects.filter(pk=sample.pk).update(sampled_at=now, **values)
    return memory


def _stranger(report: CardReport) -> str:
    """The process that is none of ours and holds most, by its name."""
    named = [one for one in (report.processes or [])[:MOST_PROCESSES] if not one.task_id]
    return fit(max(named, key=lambda one: one.used_mb or 0).name, 100) if named else ""


def _owned_mb(report: CardReport) -> dict[str, int | None] | None:
    """What each attempt's processes hold together, by "task.attempt"; null where it is not told."""
    if report.processes is None:
        return None
    owned: dict[str, int | None] = {}
    for one in report.processes[:MOST_PROCESSES]:
        if one.task_id:
            key = f"{fit(one.task_id, _LONGEST_ID)}.{count_or_none(one.attempt)}"
            used, before = memory_or_none(one.used_mb), owned.get(key, 0)
            owned[key] = None if used is None or before is None else memory_or_none(used + before)
    return owned


def _shares_changed(
    old: dict[str, int | None] | None, new: dict[str, int | None] | None, total_mb: int | None
) -> bool:
    if old is None or new is None:
        return old is not new
    return old.keys() != new.keys() or any(changed_enough(old[key], new[key], total_mb) for key in new)


def _stepped(old: int | None, new: int | None, step: int) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) >= step
