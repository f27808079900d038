"""When a silent node is lost, and when the fault is rather on this side (RECOV-02).

Silence counts only while somebody listened: after a start, and after a gap in which no sweep ran,
every node gets its full time again. Where all nodes of a fleet fall silent at once, nobody is moved
for a while: moving everything would help nobody and harm what still runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Heard:
    """When a node was last heard of, by the server's clock; `lost_since` while it counts as lost."""

    node_id: int
    last_seen_at: datetime
    lost_since: datetime | None


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds. A node is silent after `silent_s`; where all are, they are lost after `all_silent_s`."""

    silent_s: float
    all_silent_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`lost`: nodes whose work moves. `fresh`: those of them that were not lost before. `held_back`:
    silent ones that are spared because no node was heard."""

    lost: tuple[int, ...]
    fresh: tuple[int, ...]
    held_back: tuple[int, ...]


def listening_since(
    previous_start: datetime | None, previous_since: datetime | None, now: datetime, *, gap_s: float
) -> datetime:
    """Since when sweeps have been running without a gap: a process that was away, or stood still,
    begins anew."""
    if previous_start is None or previous_since is None:
        return now
    if previous_start > now or now - previous_start > timedelta(seconds=gap_s):
        return now
    return previous_since


def judge(nodes: Iterable[Heard], *, listening: datetime, now: datetime, terms: Terms) -> Verdict:
    """Which nodes are lost at a moment."""
    known = list(nodes)
    lost_before = [node.node_id for node in known if node.lost_since is not None]
    counted = [node for node in known if node.lost_since is None]
    late = [
        node
        for node in counted
        if now - max(node.last_seen_at, listening) > timedelta(seconds=terms.silent_s)
    ]
    # A single node's silence tells nothing of the others, for there are none.
    if len(counted) > 1 and len(late) == len(counted):
        patience = timedelta(seconds=terms.all_silent_s)
        overdue = [node for node in late if now - max(node.last_seen_at, listening) > patience]
    else:
        overdue = late
    fresh = tuple(node.node_id for node in overdue)
    spared = tuple(node.node_id for node in late if node not in overdue)
    return Verdict(lost=tuple(sorted((*lost_before, *fresh))), fresh=fresh, held_back=spared)
