"""What a node's heartbeat tells of its machine: cards, host, engines (AGENT-01; docs/contract.md).

Owns these shapes; `messages.py` holds the message itself. Memory in MB (2**20 bytes); None = not known, never
zero. The server keeps of each list what its limits allow.
"""

from __future__ import annotations

import msgspec

MOST_PROCESSES = 64  # told of a card


class CardHolder(msgspec.Struct):
    """A process that holds memory of a card, for the attempt `attempt` of `task_id`; "" and 0 where it is
    none of ours, and then it has a `name` for operators. `pid` 0: the driver names nobody."""

    pid: int
    used_mb: int | None = None
    task_id: str = ""
    attempt: int = 0
    name: str = ""


class CardReport(msgspec.Struct):
    """One accelerator card; None where it did not answer.

    `quarantined`: memory of an attempt that ended is still held, by `held_by`; nothing starts there.
    `processes` hold memory now, ours first, then those with most; None = the driver does not tell.
    `foreign_mb` of the used memory belong to no attempt that runs here; None = that can not be told.
    Cards of one `link_group` are joined by NVLink or the like (None = none, or not told), those of one
    `pcie_root` hang on one PCIe root ("" = not told).
    """

    uuid: str
    index: int
    vendor: str
    model: str
    vram_total_mb: int | None = None
    vram_used_mb: int | None = None
    temperature_c: int | None = None
    utilization_percent: int | None = None
    driver_version: str | None = None
    compute_capability: str | None = None
    mig_capable: bool = False
    mps_capable: bool = False
    quarantined: bool = False
    held_by: list[CardHolder] = []
    processes: list[CardHolder] | None = None
    foreign_mb: int | None = None
    link_group: int | None = None
    pcie_root: str = ""


class HostReport(msgspec.Struct):
    """The machine beside its cards. `in_container`: the agent itself runs in one (SHARE-03)."""

    cpu_count: int
    memory_total_mb: int
    memory_available_mb: int | None = None
    cpu_percent: float | None = None
    disk_used_percent: float | None = None
    in_container: bool | None = None


class EngineReport(msgspec.Struct):
    """An engine this node can run now; `version` None when it could not be read."""

    name: str
    version: str | None = None
    image: str | None = None
