"""Alerts about nodes: what the alerts app keeps, with the node as its object."""

from datetime import datetime

from apps.alerts import services
from apps.core.errors import Value
from apps.fleet.models import Duty, Node

MISUSES = ("machine_mismatch", "foreign_placement")


def raise_alert(*, node: Node, code: str, now: datetime, **params: Value) -> None:
    """Note something that happened on a node, with the node's name among the sentence's values. In
    maintenance only what endangers the fleet is: the use of its credential by somebody else."""
    if node.duty == Duty.MAINTENANCE and code not in MISUSES:
        return
    services.raise_alert(code=code, object_id=node.public_id, now=now, node=node.name, **params)
