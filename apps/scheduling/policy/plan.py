"""What was decided: placements, and why the rest waits."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from agent.contract.codes import Code, Reason, reason
from apps.scheduling.policy.registry import Refused


class Placed(msgspec.Struct, frozen=True):
    """A task on a node. `cards` are row ids; `percent` None = each card alone; `host_ports` are
    (container port, host port). `borrowed`: on cards of sleepers, which loans must be made of (SHARE-04).
    Placements of one `gang` are committed together or not at all."""

    task_id: int
    version: int
    node_id: int
    node_public_id: str
    cards: tuple[int, ...]
    percent: int | None
    host_ports: tuple[tuple[int, int], ...]
    borrowed: bool = False
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Room made for a waiting task (SCHED-11): `victims` (row ids) go back to pending, and `cards` (row ids)
    of the node are kept for the task until it is placed there or its time is up. Without victims the room is
    only kept: it comes free by itself, or waits for the others of the `gang`. Those of one `gang` are
    committed together or not at all."""

    task_id: int
    version: int
    node_id: int
    victims: tuple[int, ...]
    cards: tuple[int, ...]
    percent: int | None
    gang: str = ""


@dataclass(slots=True)
class Plan:
    """Placements in the order of work; refusals by task row id, the main one first. A task that is
    in neither waits for its back-off, or for the room that a preemption makes. `broken` holds what a plugin
    raised over a task."""

    placements: list[Placed] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    refusals: dict[int, list[Reason]] = field(default_factory=dict)
    broken: dict[int, Exception] = field(default_factory=dict)


def sum_up(refused: Iterable[tuple[Refused, int]]) -> list[Reason]:
    """Refusals, each of so many nodes, as a few reasons: InsufficientResources first (SCHED-10), then each
    code with its number of nodes and the nearest miss, the most frequent first.

    Nodes outside the tenant's scope do not exist for it and are not counted (TEN-09); where none is
    left the one reason is `no_node`.
    """
    counts: dict[Code, int] = {}
    nearest: dict[Code, Refused] = {}
    for one, nodes in refused:
        if one.code == Code.NODE_NOT_ALLOWED:
            continue
        counts[one.code] = counts.get(one.code, 0) + nodes
        best = nearest.get(one.code)
        if best is None or one.shortfall < best.shortfall:
            nearest[one.code] = one
    if not counts:
        return [reason(Code.NO_NODE)]
    by_number = sorted(counts, key=lambda code: (-counts[code], code))
    return [
        reason(Code.INSUFFICIENT_RESOURCES, nodes=sum(counts.values())),
        *(reason(code, nodes=counts[code], **nearest[code].params) for code in by_number),
    ]
