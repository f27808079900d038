"""Alerts about nodes: what the alerts app keeps, with the node as its object."""

from datetime import datetime

from apps.alerts import services
from apps.core.errors import Value
from apps.fleet.models import Node


def raise_alert(*, node: Node, code: str, now: datetime, **params: Value) -> None:
    """Note something that happened on a node, with the node's name among the sentence's values."""
    services.raise_alert(code=code, object_id=node.public_id, now=now, node=node.name, **params)
