"""How busy a node's host is, as its last heartbeat tells (SCHED-03).

A row is written only when a value moved by a step or came to the other side of its threshold, so that a
quiet fleet writes next to nothing. No answer is empty, never zero.
"""

from datetime import datetime

from django.conf import settings
from django.db.models import F

from agent.contract.messages import HostReport
from apps.fleet.models import Liveness, Node, NodeSample
from apps.fleet.services.measures import percent_or_none

# Points that are worth a write. Processors are busy or not from one heartbeat to the next.
_STEPS = {"cpu_percent": 10.0, "memory_percent": 5.0, "disk_percent": 1.0}


# What stands in a node's sample, read with its liveness: for `annotate`.
LOAD = {f"sample_{name}": F(f"node__sample__{name}") for name in ("pk", *_STEPS)}


def write_load(node: Node, live: Liveness, host: HostReport, now: datetime) -> bool:
    """Write the load where it changed from what was read with LOAD. Returns whether a value came to the other
    side of its threshold, or from or to no answer: placing depends on that alone."""
    values = {
        "cpu_percent": percent_or_none(host.cpu_percent),
        "memory_percent": _memory_percent(host),
        "disk_percent": percent_or_none(host.disk_used_percent),
    }
    row_id = getattr(live, "sample_pk", None)
    if row_id is None:
        NodeSample.objects.create(node=node, sampled_at=now, **values)
        return True
    stood = {name: getattr(live, f"sample_{name}") for name in values}
    crossed = any(_crossed(stood[name], value, _limit(name)) for name, value in values.items())
    if crossed or any(_moved(stood[name], value, _STEPS[name]) for name, value in values.items()):
        NodeSample.objects.filter(pk=row_id).update(sampled_at=now, **values)
    return crossed


def _memory_percent(host: HostReport) -> float | None:
    if host.memory_available_mb is None or host.memory_total_mb <= 0:
        return None
    return percent_or_none(100 * (1 - host.memory_available_mb / host.memory_total_mb))


def _limit(name: str) -> float:
    limits = {
        "cpu_percent": settings.LOAD_THRESHOLD_CPU,
        "memory_percent": settings.LOAD_THRESHOLD_MEMORY,
        "disk_percent": settings.LOAD_THRESHOLD_DISK,
    }
    return float(limits[name])


def _crossed(old: float | None, new: float | None, limit: float) -> bool:
    if old is None or new is None:
        return old is not new
    return (old > limit) != (new > limit)


def _moved(old: float | None, new: float | None, step: float) -> bool:
    return old is not None and new is not None and abs(new - old) >= step
