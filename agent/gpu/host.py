"""Reads the host: processors, memory, disk, ports in use, and which interface bears an address.

Owns these readings. A value that cannot be read is None, never zero.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psutil

from agent.contract.messages import HostReport

log = logging.getLogger("agent.gpu")
MB = 1 << 20
_LISTEN = "0A"


def read_host(disk_path: Path) -> HostReport:
    """The host now; `disk_path` tells which disk is meant."""
    memory = psutil.virtual_memory()
    try:
        disk: float | None = psutil.disk_usage(str(disk_path)).percent
    except OSError as error:
        log.warning("the disk of the state directory cannot be read: %s", error.strerror)
        disk = None
    return HostReport(
        cpu_count=os.cpu_count() or 1,
        memory_total_mb=memory.total // MB,
        memory_available_mb=memory.available // MB,
        cpu_percent=psutil.cpu_percent(interval=None),
        disk_used_percent=disk,
        in_container=in_container(),
    )


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process runs in a container: Docker, Podman and Kubernetes each leave a mark."""
    marks = (root / ".dockerenv", root / "run" / ".containerenv")
    return any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def interface_of(address: str) -> str:
    """The name of the interface that bears an address of this host; "" where none does."""
    for name, borne in psutil.net_if_addrs().items():
        if any(one.address == address for one in borne):
            return name
    return ""


def listening_ports(
    low: int, high: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")
) -> list[int]:
    """TCP ports of low..high on which anything of this host listens.

    Read from the kernel's tables: asking process by process takes seconds on a busy host.
    """
    found: set[int] = set()
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6 here
        for line in lines:
            fields = line.split()
            if len(fields) > 3 and fields[3] == _LISTEN:
                port = int(fields[1].rpartition(":")[2], 16)
                if low <= port <= high:
                    found.add(port)
    return sorted(found)
