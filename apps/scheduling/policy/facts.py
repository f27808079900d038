"""What of nodes and cards does not change while one decision is made, each combination once.

A filter of facts can read nothing else, and is asked once for all that have the same.
"""

from operator import attrgetter
from typing import NamedTuple

from agent.contract.states import RuntimeKind


class NodeFacts(NamedTuple):
    """As in NodeView."""

    online: bool
    cordoned: bool
    runtime: RuntimeKind | None
    engines: frozenset[str]
    open_to: frozenset[int] | None
    reachable: bool
    volume_prefixes: tuple[str, ...] | None
    host_ipc: bool | None


class CardFacts(NamedTuple):
    """As in CardView."""

    vendor: str
    model: str
    compute_capability: str | None
    quarantined: bool
    vram_total_mb: int | None


node_facts = attrgetter(*NodeFacts._fields)
card_facts = attrgetter(*CardFacts._fields)
