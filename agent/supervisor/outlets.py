"""Whom the supervisor tells: reports and logs.

Owns the two Protocols, so that the supervisor knows no link. Never sends anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agent.contract.codes import Reason
from agent.contract.states import Observed, Phase


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
    ) -> None: ...

    def waiting(self, task_id: str, attempt: int) -> bool: ...


class Logs(Protocol):
    """Who carries the engines' output to the server (`agent.link.logship`)."""

    def follow(self, task_id: str, attempt: int, file: Path, secrets: list[str]) -> None: ...

    def finish(self, task_id: str, attempt: int, *, final: bool) -> None: ...
