"""Whom the supervisor tells and asks: reports, logs, the engines.

Owns the Protocols, so that the supervisor knows no link and no socket. Never sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from agent.contract.codes import Reason
from agent.contract.states import Observed, Phase
from agent.supervisor.health import Probe, Work
from agent.supervisor.probe import ProbeTarget


class Reports(Protocol):
    """Where the supervisor tells what happened (`agent.link.reports`)."""

    def add(
        self,
        task_id: str,
        attempt: int,
        phase: Phase,
        observed: Observed,
        *,
        why: Reason | None = None,
        exit_code: int | None = None,
        last_log_lines: list[str] | None = None,
        notes: list[Reason] | None = None,
    ) -> None: ...

    def waiting(self, task_id: str, attempt: int) -> bool: ...


class Engines(Protocol):
    """How engines on this host are asked (`agent.supervisor.probe`). Nothing here raises."""

    async def probe(self, target: ProbeTarget) -> Probe: ...

    async def work(self, target: ProbeTarget) -> Work | None: ...

    async def sleep(self, target: ProbeTarget, level: int, timeout_s: float) -> str: ...

    async def canary(self, target: ProbeTarget, timeout_s: float) -> str: ...


class Cards(Protocol):
    """Whether cards are free for a start (`agent.gpu.cardgate`)."""

    def hindrance(self, gpu_uuids: Iterable[str], now: float) -> Reason | None: ...

    def is_quarantined(self, gpu_uuids: Iterable[str]) -> bool: ...


class Logs(Protocol):
    """Who carries the engines' output to the server (`agent.link.logship`)."""

    def follow(self, task_id: str, attempt: int, file: Path, secrets: list[str]) -> None: ...

    def finish(self, task_id: str, attempt: int, *, final: bool) -> None: ...
