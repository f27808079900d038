"""What becomes of a wish to wake a sleeping task (SLEEP-02 to -05).

Pure: no Django, no clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.contract.codes import Code


class Step(StrEnum):
    """`wait`: nothing moves now, the wish stays. `restart`: its own container again. `rebuild`: a new
    attempt, so a new container, in its old place. `replace`: a new place."""

    WAIT = "wait"
    RESTART = "restart"
    REBUILD = "rebuild"
    REPLACE = "replace"


@dataclass(frozen=True)
class Bed:
    """Where a task sleeps. `placed` False = its node was emptied or is gone. `leaving`: the node is being
    emptied. `container`: its node still keeps one. `lent`: other work uses its card."""

    placed: bool = True
    online: bool = True
    leaving: bool = False
    lent: bool = False
    container: bool = True


def decide_wake(bed: Bed) -> tuple[Step, Code]:
    """What a wake does now, and why."""
    if not bed.placed:
        return Step.REPLACE, Code.WAKE_NEW_PLACE
    if not bed.online:
        return Step.WAIT, Code.WAKE_NODE_OFFLINE  # recovery rebuilds it elsewhere (SLEEP-04)
    if bed.lent:
        return Step.WAIT, Code.WAKE_CARD_LENT
    if bed.leaving:
        return Step.REPLACE, Code.WAKE_NEW_PLACE
    if not bed.container:
        return Step.REBUILD, Code.WAKE_NEW_CONTAINER
    return Step.RESTART, Code.WAKE_REQUESTED
