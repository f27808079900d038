"""Which of a pair stays: the task on a node that is being emptied, or its replacement (LIFE-09).

Pure: no Django, no clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.contract.states import Phase, State

READY = 3


class Choice(StrEnum):
    """`keep_new`: the old one leaves; `keep_old`: the replacement does; `wait`: both go on."""

    WAIT = "wait"
    KEEP_NEW = "keep_new"
    KEEP_OLD = "keep_old"


@dataclass(frozen=True)
class Side:
    """One of a pair. `wanted`: nobody asked it to stop, and its service is not deleted. `spent_for_s`: for
    how long it has failed with its rebuilds spent; None = it has not."""

    state: State
    phase: Phase
    wanted: bool
    spent_for_s: float | None = None

    @property
    def readiness(self) -> int:
        """0 = has no place, 1 = starts, 2 = ran and is not ready, 3 = ready."""
        if self.state == State.RUNNING:
            return READY if self.phase == Phase.READY else 2
        return int(self.state == State.SCHEDULING)


def judge(old: Side, new: Side, *, emptying: bool, forced: bool, retry_s: float) -> Choice:
    """What becomes of a pair now. `emptying`: the old one still stands on a node that is to be emptied;
    `forced`: an operator would rather have a gap than wait. Where the drain was cancelled, or the old one
    lost its node, the readier one stays, of equals the old one."""
    if not old.wanted or not new.wanted:
        return Choice.KEEP_OLD  # what its people asked of the old one holds
    if new.readiness > old.readiness:
        return Choice.KEEP_NEW
    if not emptying:
        return Choice.KEEP_OLD
    if forced:
        return Choice.KEEP_NEW if new.readiness else Choice.KEEP_OLD
    if new.readiness == READY:
        return Choice.KEEP_NEW
    if new.spent_for_s is not None and new.spent_for_s >= retry_s:
        return Choice.KEEP_OLD  # tried anew, perhaps elsewhere
    return Choice.WAIT
