"""Builds the fleet's columns out of a snapshot's nodes (`columns.py`): reads each node and card once."""

from collections.abc import Callable, Iterable
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.scheduling.policy.capacity import LEFT, rank, reckon, sum_up_holds
from apps.scheduling.policy.facts import CardFacts, NodeFacts, card_facts, node_facts
from apps.scheduling.policy.lanes import CARD_COLUMNS, INPUTS, NO_CAP, NO_CARD, NODE_COLUMNS
from apps.scheduling.policy.snapshot import NodeView, Reserve

if TYPE_CHECKING:
    from apps.scheduling.policy.columns import Columns


def build_cards(columns: "Columns", reserve: Reserve) -> None:
    """All columns of cards."""
    size = columns.width * columns.count
    promised, claims, foreign = [NO_CARD] * size, [0] * size, [0] * size
    used, total, reserved = [0] * size, [1] * size, [0] * size
    known, kinds, models = bytearray(size), [0] * size, [0] * size
    alone, without_other = bytearray(size), bytearray(b"\1" * size)
    kind_of: dict[tuple[Any, ...], int] = {}
    model_of: dict[tuple[str, str], int] = {}
    lanes, tenants = columns.circles.cards.lanes, columns.circles.cards.tenants
    ids = [0] * size
    lowest: int | None = None
    last: tuple[Any, ...] | None = None
    kind = model = keep = 0
    for place, node in enumerate(columns.nodes):
        lane = place
        for card in node.cards:
            facts = card_facts(card)
            if facts != last:
                last = facts
                if facts not in kind_of:
                    kind_of[facts] = len(columns.card_kinds)
                    columns.card_kinds.append(CardFacts(*facts))
                kind = kind_of[facts]
                model = model_of.setdefault((card.vendor, card.model), len(model_of) + 1)
                size_mb = facts[4] or 1
                keep = reserve.fixed_mb + int(size_mb * reserve.ratio)
            kinds[lane], models[lane], total[lane], reserved[lane] = kind, model, size_mb, keep
            ids[lane] = card.id
            use = card.used_mb
            if use is not None and facts[4]:
                known[lane], used[lane] = 1, use
                foreign[lane] = card.foreign_mb or 0
            if card.holds:
                it = sum_up_holds(card.holds, size_mb)
                promised[lane], claims[lane] = it.promised, it.claims_mb
                without_other[lane] = not it.other
                for hold in card.holds:
                    lanes.append(lane)
                    tenants.append(hold.tenant_id)
                    if (hold.preemptible or hold.leaving) and not hold.reserved_for:
                        lowest = hold.priority if lowest is None else min(lowest, hold.priority)
            else:
                promised[lane], alone[lane] = 0, 1
            lane += columns.count
    flags = {
        name: np.frombuffer(bits, np.bool_).reshape(columns.shape)
        for name, bits in (("alone", alone), ("without_other", without_other), ("known", known))
    }
    amounts = [promised, claims, foreign, used, total, reserved]
    held: dict[str, Any] = {
        name: np.array(values, np.int64).reshape(columns.shape)
        for name, values in zip(INPUTS, amounts, strict=True)
    }
    left = reckon(**held, known=flags["known"], limit=columns.limit)
    held |= {**flags, **dict(zip(LEFT, left, strict=True))}
    slots = np.arange(columns.width).reshape(-1, 1)
    held["rank"] = rank(held["fullness"], slots)
    held["model"] = np.array(models, np.int32).reshape(columns.shape)
    for name, kept in CARD_COLUMNS.items():
        setattr(columns, name, np.array(held[name], kept))
    columns.card_kind = np.array(kinds, np.int32).reshape(columns.shape)
    columns.card_id = np.array(ids, np.int64)
    columns.lowest = lowest


def build_nodes(columns: "Columns") -> None:
    """All columns of nodes; those of cards stand."""
    kind_of: dict[tuple[Any, ...], int] = {}
    kinds = []
    circles = columns.circles
    rows: dict[str, list[Any]] = {name: [] for name in NODE_COLUMNS if name != "begun"}
    for place, node in enumerate(columns.nodes):
        facts = node_facts(node)
        if facts not in kind_of:
            kind_of[facts] = len(columns.node_kinds)
            columns.node_kinds.append(NodeFacts(*facts))
        kinds.append(kind_of[facts])
        for name, value in node_row(node).items():
            rows[name].append(value)
        for tenants, crowd in ((node.tenants, circles.living), (node.host_wide, circles.wide)):
            crowd.lanes.extend([place] * len(tenants))
            crowd.tenants.extend(tenants)
        for group, number in node.siblings.items():
            columns.siblings.setdefault(group, {})[place] = number
    columns.index["models"] = index_of(columns.nodes, lambda node: node.models)
    columns.node_kind = np.array(kinds, np.int32)
    for name, values in rows.items():
        setattr(columns, name, np.array(values, NODE_COLUMNS[name]))
    cards = (columns.card_kind > 0).sum(axis=0)
    begun = ((columns.card_kind > 0) & (columns.alone ^ True)).sum(axis=0)
    columns.begun = begun / np.maximum(cards, 1)


def index_of(nodes: Iterable[NodeView], values_of: Callable[[NodeView], Iterable[Any]]) -> dict[Any, Any]:
    """Places of nodes, in order, by each value among those of a field."""
    found: dict[Any, list[int]] = {}
    for place, node in enumerate(nodes):
        for one in values_of(node):
            found.setdefault(one, []).append(place)
    return found


def node_row(node: NodeView) -> dict[str, Any]:
    """The columns of one node, as it comes."""
    cap = node.inference_cap
    first, last = node.port_first, node.port_last
    percents = (node.cpu_percent, node.memory_percent, node.disk_percent)
    return {
        "cap_left": NO_CAP if cap is None else cap - node.inference_count,
        "inference_cap": NO_CAP if cap is None else cap,
        "ports_left": last - first + 1 - sum(1 for port in node.ports if first <= port <= last),
        "port_first": first,
        "port_last": last,
        "tasks": sum(node.siblings.values()),
        "has_cards": bool(node.cards),
        "cpu_percent": nan if percents[0] is None else percents[0],
        "memory_percent": nan if percents[1] is None else percents[1],
        "disk_percent": nan if percents[2] is None else percents[2],
        "load_known": None not in percents,
        "ipc_apart": node.host_ipc is False,
    }


def largest_group(names: Iterable[Any]) -> int:
    """How many of them have the most frequent name; None is no name."""
    counts: dict[Any, int] = {}
    for name in names:
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return max(counts.values(), default=0)
