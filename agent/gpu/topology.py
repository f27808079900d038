"""Which cards of a node are near each other: joined by NVLink, or on one PCIe root.

Owns how the driver's answers about pairs become groups. NVLink is what the driver lets two cards use
between them, over a bridge or over NVSwitch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec


class Near(msgspec.Struct, frozen=True):
    """Of one card, as in CardReport."""

    link_group: int | None = None
    pcie_root: str = ""


def read_topology(nvml: Any, handles: list[Any], value: Callable[[Callable[[], Any]], Any]) -> list[Near]:
    """Groups, named by the lowest index among them, for the cards of these handles. `value` reads one answer,
    None where there is none."""

    def linked(a: int, b: int) -> bool:
        said = value(
            lambda: nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        )
        return said is not None and said == nvml.NVML_P2P_STATUS_OK

    def level(a: int, b: int) -> Any:
        return value(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(handles[a], handles[b]))

    levels = {(a, b): level(a, b) for a, b in combinations(range(len(handles)), 2)}
    links = _groups(len(handles), linked)
    told = None not in levels.values()
    roots = _groups(len(handles), lambda a, b: told and levels[a, b] <= nvml.NVML_TOPOLOGY_HOSTBRIDGE)
    return [
        Near(link if links.count(link) > 1 else None, str(root) if told else "")
        for link, root in zip(links, roots, strict=True)
    ]


def _groups(count: int, joined: Callable[[int, int], bool]) -> list[int]:
    """The lowest number of each one's group: those joined, and those joined to these."""
    group = list(range(count))
    for a, b in combinations(range(count), 2):
        if group[a] != group[b] and joined(a, b):
            low, high = sorted((group[a], group[b]))
            group = [low if one == high else one for one in group]
    return group
