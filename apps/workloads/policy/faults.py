"""The fault timeline of a service: each failure and each loss of a place as one entry (LIFE-06).

Derived from events, which are all that is kept. Pure: no Django, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from agent.contract.codes import Code
from agent.contract.states import State
from apps.workloads.policy.moves import RUNS_ON_NODE
from apps.workloads.policy.rebuilding import GIVEN_UP

# Moves off a place that somebody asked for: no faults.
ASKED_FOR = frozenset({Code.NODE_DRAINING, Code.NODE_FORCED, Code.WAKE_NEW_PLACE, Code.START_REQUESTED})
OF_ITS_OWN = RUNS_ON_NODE | {State.SLEEPING, State.STOPPING}
# What is said of a task that was moved at once: the cause is all that its event tells.
MOVED = "fault_moved"


class Outcome(StrEnum):
    """How a fault ended. `open`: it has not, or it was given up."""

    OPEN = "open"
    SERVING = "serving"
    FAILED_AGAIN = "failed_again"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a task. `from_` and `to` are empty where its state stayed."""

    task: str
    attempt: int | None
    at: datetime
    from_: str
    to: str
    code: str
    params: Mapping[str, Any]


@dataclass(slots=True)
class Fault:
    """`cause` is the moment that began it; `action` what was done about it, as a code with its values, None
    while nothing was; `until` when it was over, None while it is not."""

    cause: Moment
    action: tuple[str, Mapping[str, Any]] | None = None
    until: datetime | None = None
    outcome: Outcome = Outcome.OPEN

    @property
    def duration_s(self) -> float | None:
        """Seconds until it was over."""
        return None if self.until is None else (self.until - self.cause.at).total_seconds()


def find_faults(moments: Iterable[Moment]) -> list[Fault]:
    """The faults in events that come in the order of time, the newest fault first."""
    found: list[Fault] = []
    present: dict[str, Fault] = {}
    for moment in moments:
        fault = present.get(moment.task)
        if fault is not None:
            _go_on(fault, moment)
            if fault.until is not None:
                del present[moment.task]
        if _is_fault(moment):
            fault = present[moment.task] = Fault(moment)
            fault.action = (MOVED, {}) if moment.to == State.PENDING else None
            found.append(fault)
    return found[::-1]


def _is_fault(moment: Moment) -> bool:
    if moment.from_ not in OF_ITS_OWN:
        return False
    return moment.to == State.FAILED or (moment.to == State.PENDING and moment.code not in ASKED_FOR)


def _go_on(fault: Fault, moment: Moment) -> None:
    if fault.action is None and (moment.from_ == State.FAILED or moment.code in GIVEN_UP):
        fault.action = (moment.code, moment.params)
    if _is_fault(moment):
        fault.until, fault.outcome = moment.at, Outcome.FAILED_AGAIN
    elif moment.to == State.RUNNING:
        fault.until, fault.outcome = moment.at, Outcome.SERVING
    elif moment.to in (State.STOPPED, State.COMPLETED, State.SLEEPING):
        fault.until, fault.outcome = moment.at, Outcome.ENDED
