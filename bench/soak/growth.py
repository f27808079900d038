"""What a stack holds at one moment: memory and open files of each process, rows of each table."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.production_stack import ProductionStack

ROWS = """
SELECT relname, (xpath('/row/n/text()',
  query_to_xml(format('SELECT count(*) AS n FROM %%I', relname), true, true, '')))[1]::text::bigint
FROM pg_stat_user_tables ORDER BY relname
"""


@dataclass(frozen=True)
class Held:
    """By process (`name-number`, in the order of command lines): its id, resident memory in MiB, open
    descriptors. By table: rows."""

    ids: dict[str, int]
    memory_mb: dict[str, float]
    descriptors: dict[str, int]
    rows: dict[str, int]


def look(stack: ProductionStack) -> Held:
    """The supervisor and each of its children, with the children that those have of their own. Looks again
    where one ends meanwhile."""
    while True:
        try:
            return _look(stack)
        except psutil.NoSuchProcess:
            time.sleep(0.5)


def _look(stack: ProductionStack) -> Held:
    ids: dict[str, int] = {}
    memory: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    for name, process in _processes(stack).items():
        # Engines come and go with the services; what counts of a node is the agent itself.
        alone = name.startswith(("agent", "supervisor"))
        family = [process] if alone else [process, *process.children(recursive=True)]
        ids[name] = process.pid
        memory[name] = sum(_own_mb(one) for one in family)
        descriptors[name] = sum(one.num_fds() for one in family)
    return Held(ids, memory, descriptors, dict(stack.rows(ROWS)))


def _processes(stack: ProductionStack) -> dict[str, psutil.Process]:
    assert stack.process is not None
    supervisor = psutil.Process(stack.process.pid)
    found, numbers = {"supervisor": supervisor}, Counter[str]()
    for child in sorted(supervisor.children(), key=lambda one: one.cmdline()):
        name = _name(child.cmdline())
        numbers[name] += 1
        found[f"{name}-{numbers[name]}"] = child
    return found


def _name(words: list[str]) -> str:
    """The part that a command line starts: a module of ours, one of Celery's, or a program."""
    for name in ("worker", "beat", "granian", "uvicorn", "agent"):
        if name in words:
            return "scheduler" if "scheduling" in words else name
    return Path(words[0].rstrip(":")).name


def _own_mb(process: psutil.Process) -> float:
    """Resident, with shared pages counted in part: PostgreSQL's processes share most of theirs."""
    return float(process.memory_full_info().pss) / 2**20
