"""Other host ports for an attempt whose own are held by something else of its node (AGENT-07, SVC-12).

Owns the choice, in the transaction of the claim. A port that somebody asked for is never moved, nor the one
at which a pipeline's stages meet: the others may have been told of it.
"""

import logging
from collections.abc import Collection
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from agent.contract.codes import Code
from agent.contract.messages import PortMapping
from apps.fleet.models import Liveness, Node, Port
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.pipelines import MEETING_PORT

LARGEST_PORT = 65535
log = logging.getLogger("heteroflow.workloads")


def port_mappings(claim: Claim) -> list[PortMapping]:
    """The attempt's ports as its agent is told them."""
    asked = _asked_for(claim.task)
    rows = _served(claim).order_by("container_port")
    return [PortMapping(row.container_port, row.number, row.container_port not in asked) for row in rows]


def move_ports(claim: Claim, busy: Collection[int], *, now: datetime) -> None:
    """Give the attempt other ports for those of its own that its agent found `busy`. Where the range has none
    left it keeps them, and fails there."""
    busy = {number for number in busy if 0 < number <= LARGEST_PORT}
    asked = _asked_for(claim.task)
    for row in _served(claim).filter(number__in=busy).order_by("container_port"):
        if row.container_port in asked:
            continue
        before = row.number
        if _move(row, busy):
            log.info("task %s: port %s is not to be had, %s is", claim.task.public_id, before, row.number)
            Event.objects.create(
                group_id=claim.task.group_id,
                task=claim.task,
                attempt=claim.attempt,
                code=Code.PORT_MOVED,
                params={"port": before, "to": row.number},
                actor=claim.node.public_id,
                at=now,
            )


def _served(claim: Claim) -> QuerySet[Port]:
    held = Port.objects.filter(owner=claim.task.public_id, attempt=claim.attempt)
    return held.exclude(container_port=MEETING_PORT)


def meeting_port(task: Task) -> int | None:
    """The host port at which the stages meet whose head this is; None where its attempt holds none."""
    held = Port.objects.filter(owner=task.public_id, attempt=task.attempt, container_port=MEETING_PORT)
    return held.values_list("number", flat=True).first()


def _asked_for(task: Task) -> set[int]:
    """Container ports with a host port that the user fixed."""
    return {int(port["container_port"]) for port in task.ports if port.get("host_port")}


def _move(row: Port, busy: Collection[int]) -> bool:
    node = Node.objects.get(pk=row.node_id)
    foreign = Liveness.objects.filter(node=node).values_list("foreign_ports", flat=True).first() or []
    count = node.port_last - node.port_first + 1
    taken = {*busy, *foreign}
    while True:
        taken.update(Port.objects.filter(node=node).values_list("number", flat=True))
        round_ = (node.port_first + (row.number - node.port_first + step) % count for step in range(1, count))
        free = next((number for number in round_ if number not in taken), None)
        if free is None:
            return False
        try:
            with transaction.atomic():
                Port.objects.filter(pk=row.pk).update(number=free)
        except IntegrityError:  # the scheduler gave it out in this moment
            taken.add(free)
        else:
            row.number = free
            return True
