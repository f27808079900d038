"""A pipeline's stages live and end together (PAR-03): what follows from the state of one for the others.

Pure: no Django, no clock. Which node takes which stage is placing's.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from agent.contract.states import Desired, State

HEAD = 0  # the rank that serves, and where the others meet
MEETING_PORT = 0  # stands for the container port of the host port at which they meet

# States of a stage that has, or keeps, a place which is of no use without the others.
_PLACED = frozenset({State.SCHEDULING, State.RUNNING, State.WAKING, State.SLEEPING})

_ENDABLE = (_PLACED | {State.PENDING}) - {State.SLEEPING}  # a sleeper starts nothing until it is woken

# A pipeline is as far as its weakest stage.
_WEAKEST = (
    State.FAILED,
    State.STOPPING,
    State.PENDING,
    State.SCHEDULING,
    State.WAKING,
    State.DRAINING,
    State.SLEEPING,
    State.RUNNING,
)


@dataclass(frozen=True)
class Member:
    """One stage. `given_up`: it failed, and nothing starts it again by itself. `waits`: it is on its way to
    sleep and goes on for the calls that the head still has."""

    task_id: int
    rank: int
    state: State
    desired: Desired = Desired.RUN
    given_up: bool = False
    waits: bool = False


class Step(StrEnum):
    """`restart`: back to waiting, to be placed with the others. `give_up`: fail as another one did. `sleep`:
    follow the head, which sleeps."""

    RESTART = "restart"
    GIVE_UP = "give_up"
    SLEEP = "sleep"


@dataclass(frozen=True)
class Steps:
    """Row ids of tasks and what each has to do; `because` is the rank of the stage that it follows from."""

    by_task: dict[int, Step]
    because: int = HEAD


def keep_together(members: Iterable[Member]) -> Steps:
    """What brings a pipeline's stages in line again; nothing while they are. A stage that was asked to stop
    has asked for the others too, so that nothing follows from it."""
    stages = sorted(members, key=lambda one: one.rank)
    wanted = [one for one in stages if one.desired != Desired.STOP]
    hopeless = next((one for one in wanted if one.given_up), None)
    if hopeless is not None:
        others = [one for one in wanted if one.state in _ENDABLE]
        return Steps({one.task_id: Step.GIVE_UP for one in others}, hopeless.rank)
    lost = next((one for one in wanted if one.state in (State.FAILED, State.PENDING)), None)
    if lost is not None:
        others = [one for one in wanted if one.state in _PLACED]
        return Steps({one.task_id: Step.RESTART for one in others}, lost.rank)
    if stages and stages[0].rank == HEAD and stages[0].state == State.SLEEPING:
        others = [one for one in wanted if _waits_for_head(one)]
        return Steps({one.task_id: Step.SLEEP for one in others})
    return Steps({})


def _waits_for_head(one: Member) -> bool:
    leaving = one.state == State.DRAINING and one.waits
    return one.rank != HEAD and (leaving or one.state == State.RUNNING)


def derive_pipeline_state(states: Collection[State]) -> State:
    """The state of a pipeline whose stages are in these states (LIFE-05)."""
    present = set(states)
    for state in _WEAKEST:
        if state in present:
            return state
    return State.COMPLETED if present == {State.COMPLETED} else State.STOPPED


def ports_of_stage(ports: Iterable[tuple[int, int]], rank: int) -> tuple[tuple[int, int], ...]:
    """The (container port, host port or 0) that a stage has to be given: the head what the service has and
    one for the stages to meet at, the others none."""
    return (*ports, (MEETING_PORT, 0)) if rank == HEAD else ()
