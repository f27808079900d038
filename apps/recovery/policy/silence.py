"""When a silent node is lost, and when the fault is rather on this side (RECOV-02).

Silence counts only while somebody listened: after a start, and after a gap in which no sweep ran,
every node gets its full time again. While all nodes of a fleet are silent at once nobody is moved, however
long it lasts: there is no node to move to, and what still runs would be harmed. Heartbeats are not in step,
so that of a fleet that falls silent at once some are late before others: that nobody was heard for half of
that time says it already.
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
class Verdict:
    """`lost`: nodes whose work moves. `fresh`: those of them that were not lost before. `held_back`:
    silent ones that are spared because no node was heard."""

    lost: tuple[int, ...]
    fresh: tuple[int, ...]
    held_back: tuple[int, ...]


def judge(nodes: Iterable[Heard], *, listening: datetime, now: datetime, silent_s: float) -> Verdict:
    """Which nodes are lost at a moment: silent for longer than `silent_s` seconds, but never all at once."""
    known = list(nodes)
    lost_before = [node.node_id for node in known if node.lost_since is not None]
    counted = [node for node in known if node.lost_since is None]
    late = [node for node in counted if now - max(node.last_seen_at, listening) > timedelta(seconds=silent_s)]
    lately = now - timedelta(seconds=silent_s / 2)
    # A single node's silence tells nothing of the others, for there are none.
    all_at_once = len(counted) > 1 and all(node.last_seen_at < lately for node in known)
    silent = tuple(node.node_id for node in late)
    fresh, spared = ((), silent) if all_at_once else (silent, ())
    return Verdict(lost=tuple(sorted((*lost_before, *fresh))), fresh=fresh, held_back=spared)
