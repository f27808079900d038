"""What every part of the supervisor works with: the runtime, whom to ask and whom to tell.

Owns the one place where the supervisor reports from. Decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from agent.config import Settings
from agent.contract.codes import Reason
from agent.contract.states import Phase
from agent.runtime.base import Exit, Runtime
from agent.supervisor.attempt import Attempt
from agent.supervisor.outlets import Cards, Engines, Logs, Reports
from agent.supervisor.sleepmarks import SleepMarks

log = logging.getLogger("agent.supervisor")


@dataclass
class Surroundings:
    """`wake` runs the loop's next step now; `leaving` once the agent ends."""

    settings: Settings
    runtime: Runtime
    engines: Engines
    reports: Reports
    logs: Logs
    marks: SleepMarks
    cards: Cards
    wake: Callable[[], None]
    leaving: bool = False

    def tell(
        self,
        a: Attempt,
        phase: Phase,
        *,
        why: Reason | None = None,
        ended: Exit | None = None,
        lines: list[str] | None = None,
        notes: list[Reason] | None = None,
    ) -> None:
        """Report where this attempt is now."""
        at = a.observed.value if phase is Phase.LEAVING else phase.value
        log.info("%s: %s", a.name, f"{at}, {why.code}" if why and why.code != at else at)
        code = ended.exit_code if ended else None
        self.reports.add(
            a.task_id,
            a.attempt,
            phase,
            a.observed,
            why=why,
            exit_code=code,
            last_log_lines=lines,
            notes=notes,
        )
