"""What operators ask of nodes (LIFE-09). Each may be repeated; the moving itself is the loop's."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from apps.core import hints, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.fleet import services as fleet
from apps.fleet.models import Duty, Node
from apps.fleet.services.changes import note_node
from apps.tenants.scope import Viewer
from apps.usage.cardtime import settle
from apps.workloads.models import Claim
from apps.workloads.services import clear_node

LOOP = "upkeep.drain"


@dataclass(frozen=True)
class Deleted:
    """What a deletion did: how many claims it released by force."""

    released: int


def drain_node(*, actor: Viewer, node: Node, now: datetime) -> bool:
    """Close a node and let its inference move elsewhere, served all the while; False where that was
    asked before. Ends a maintenance but not its emptying. Raises Forbidden for anyone but an operator."""
    return _turn(actor, node, Duty.DRAIN, "drain_node", now)


def maintain_node(*, actor: Viewer, node: Node, now: datetime) -> bool:
    """As a drain; besides, its agent takes nothing on and its alerts are held back. Raises Forbidden."""
    return _turn(actor, node, Duty.MAINTENANCE, "maintain_node", now)


def resume_node(*, actor: Viewer, node: Node, now: datetime) -> bool:
    """End drain or maintenance, and a cordon with it: the node takes new work. Raises Forbidden."""
    return _turn(actor, node, Duty.SERVICE, "resume_node", now)


def force_node(*, actor: Viewer, node: Node, after_s: float | None, now: datetime) -> bool:
    """Of a node that is being emptied: stop what is still there first, and start it elsewhere when there is
    a place, `after_s` seconds from now (0 = at once; None = never, as without this word). Training and
    containers too, which begin anew. False where that was asked before.

    Raises Forbidden, Conflict `node_in_service`.
    """
    _operators_only(actor)
    force_at = None if after_s is None else now + timedelta(seconds=after_s)
    changed = fleet.set_force(actor=actor, node=node, force_at=force_at, now=now)
    hints.kick(LOOP)
    return changed


def delete_node(*, actor: Viewer, node: Node, force: str = "", now: datetime) -> Deleted:
    """Remove a node with its credential, cards and ports. Where it holds live claims `force` must be
    its name: they are released, their tasks placed anew, whatever still runs there.

    Raises Forbidden, Conflict `node_holds_tasks`, Invalid for another word.
    """
    _operators_only(actor)
    if force and force != node.name:
        raise Invalid([FieldError("force", "not_a_choice", force, {"choices": node.name})])
    with transaction.atomic():
        present = Node.objects.select_for_update().filter(pk=node.pk).first()
        if present is None:
            return Deleted(0)
        held = Claim.objects.filter(node=present, released_at__isnull=True).count()
        if held and not force:
            raise Conflict("node_holds_tasks", node=present.name, tasks=held)
        # Closed first, so that nothing that is moved off comes back to it.
        Node.objects.filter(pk=present.pk).update(cordoned=True)
        released = clear_node(node=present, by=actor.name, now=now)
        note_node(actor, "delete_node", present, before={"duty": present.duty, "claims": held})
        settle(Claim.objects.filter(node=present), now=now)  # its claims go with it
        present.delete()
        versions.bump()
        hints.kick("scheduling.place")
        hints.kick(LOOP)
    return Deleted(released)


def _turn(actor: Viewer, node: Node, duty: Duty, verb: str, now: datetime) -> bool:
    _operators_only(actor)
    changed = fleet.set_duty(actor=actor, node=node, duty=duty, verb=verb, now=now)
    hints.kick(LOOP)
    return changed


def _operators_only(actor: Viewer) -> None:
    if not actor.is_operator:
        raise Forbidden
