"""The table of allowed moves (LIFE-02) and the group state that follows from its tasks' (LIFE-05).

Pure: no Django, no clock.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from agent.contract.codes import Code
from agent.contract.states import Desired, Phase, State

S = State

MOVES: dict[State, frozenset[State]] = {
    S.PENDING: frozenset({S.SCHEDULING, S.STOPPED, S.FAILED}),
    S.SCHEDULING: frozenset({S.RUNNING, S.PENDING, S.FAILED, S.STOPPING}),
    S.RUNNING: frozenset({S.DRAINING, S.STOPPING, S.COMPLETED, S.FAILED, S.PENDING}),
    S.DRAINING: frozenset({S.SLEEPING, S.STOPPING, S.STOPPED, S.RUNNING, S.FAILED}),
    S.SLEEPING: frozenset({S.WAKING, S.PENDING, S.STOPPING}),
    S.WAKING: frozenset({S.RUNNING, S.SLEEPING, S.PENDING, S.FAILED, S.STOPPING}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED}),
    S.FAILED: frozenset({S.PENDING, S.STOPPED}),
    S.STOPPED: frozenset({S.PENDING}),
    S.COMPLETED: frozenset(),
}

# States of an attempt that its node should run; in every other one the node should not have it.
RUNS_ON_NODE = frozenset({S.SCHEDULING, S.RUNNING, S.DRAINING, S.WAKING})

# Of those, the ones in which it is meant to serve; `draining` is on its way out.
SERVING = RUNS_ON_NODE - {S.DRAINING}

# States in which an agent may take an attempt on: a wake does so where the container is gone (SLEEP-03).
CLAIMABLE = frozenset({S.SCHEDULING, S.WAKING})

# States of a task that holds nothing on a node, or only what its node has yet to give back.
ENDED = frozenset({S.STOPPED, S.COMPLETED, S.FAILED})

# The first of these that any task is in is the group's state.
_LEADING = (
    S.RUNNING,
    S.WAKING,
    S.SCHEDULING,
    S.PENDING,
    S.DRAINING,
    S.STOPPING,
    S.SLEEPING,
    S.FAILED,
)


def is_allowed(from_: State, to: State) -> bool:
    """Whether the table knows this move."""
    return to in MOVES[from_]


def derive_group_state(states: Collection[State]) -> State:
    """The state of a group whose tasks are in these states: what serves counts before what waits,
    what waits before what ended. A group without tasks is stopped."""
    present = set(states)
    for state in _LEADING:
        if state in present:
            return state
    return State.COMPLETED if present == {State.COMPLETED} else State.STOPPED


def is_falling_asleep(state: State, phase: Phase, desired: Desired) -> bool:
    """Whether a task's node has been told to put it to sleep and has not confirmed it. A draining task
    whose phase is still `ready` has left the routes only: it may be called back."""
    return state == State.DRAINING and phase == Phase.LEAVING and desired != Desired.STOP


def is_wake_requested(state: State, desired: Desired) -> bool:
    """Whether somebody asked a task to wake that can not yet: its node is offline, its card is lent, or
    it is still falling asleep."""
    return state in (State.SLEEPING, State.DRAINING) and desired == Desired.RUN


class Waiting(StrEnum):
    """What a task waits for in its state; where one state has several, phase and wish tell."""

    PLACE = "a node with room"
    TAKEN_ON = "its node's agent to take it on"
    READY = "its first ready answer"
    OWN_END = "training or a container: its own end"
    CALLED_BACK = "quiet, out of the routes; it may be called back"
    ASLEEP = "its node to put it to sleep"
    DRAINED = "its running calls to end before it stops"
    WAKER = "somebody to wake it; asked to, for its node or card"
    WAKE_TAKEN_ON = "its node's agent to build its container anew"
    AWAKE = "its first ready answer after a sleep"
    STOPPED = "its node to confirm the end"
    REBUILD = "its rebuild, once its node confirmed the end"


@dataclass(frozen=True)
class Wait:
    """One wait: the settings whose sum is its deadline (none: it has no end of its own), where the task goes
    then and with what reason ("" = it keeps the one it has), and what else bounds it."""

    state: State
    settings: tuple[str, ...] = ()
    to: State | None = None
    code: Code | None = None
    note: str = ""


# Every wait of a task that is not over (LIFE-01): `expire_deadlines` ends them, docs/states.md shows them.
WAITING: dict[Waiting, Wait] = {
    Waiting.PLACE: Wait(S.PENDING, note="told by its refusals, an alert after ALERT_PENDING_S"),
    Waiting.TAKEN_ON: Wait(S.SCHEDULING, ("CLAIM_DEADLINE_S",), S.FAILED, Code.START_TIMEOUT),
    Waiting.READY: Wait(
        S.SCHEDULING, ("START_DEADLINE_S",), S.FAILED, Code.LOAD_TIMEOUT, "and the service's start period"
    ),
    Waiting.OWN_END: Wait(S.RUNNING, ("RUN_TIMEOUT_S",), S.FAILED, Code.RUN_TIMEOUT, "or its own timeout"),
    Waiting.CALLED_BACK: Wait(S.DRAINING, ("SLEEP_DRAIN_S",), S.RUNNING, Code.STILL_USED),
    Waiting.ASLEEP: Wait(
        S.DRAINING, ("SLEEP_DRAIN_S", "STOP_DEADLINE_S"), S.SLEEPING, Code.SLEEP_UNCONFIRMED
    ),
    Waiting.DRAINED: Wait(S.DRAINING, ("DRAIN_DEADLINE_S",), S.STOPPING),
    Waiting.WAKER: Wait(
        S.SLEEPING, note="a loan's borrower is stopped after LOAN_MAX_S, or its tenant's minutes"
    ),
    Waiting.WAKE_TAKEN_ON: Wait(S.WAKING, ("CLAIM_DEADLINE_S",), S.FAILED, Code.WAKE_FAILED),
    Waiting.AWAKE: Wait(
        S.WAKING, ("START_DEADLINE_S",), S.FAILED, Code.WAKE_FAILED, "and the service's start period"
    ),
    Waiting.STOPPED: Wait(
        S.STOPPING,
        ("STOP_DEADLINE_S",),
        S.FAILED,
        Code.STOP_UNCONFIRMED,
        "while its node is silent the stop holds",
    ),
    Waiting.REBUILD: Wait(S.FAILED, note="inference: REBUILD_DELAY_S, doubled each time, REBUILD_MAX times"),
}


def waiting_for(state: State, phase: Phase, desired: Desired) -> Waiting | None:
    """What a task waits for now; None where it has ended for good, or serves."""
    match state:
        case State.SCHEDULING:
            return Waiting.TAKEN_ON if phase == Phase.PLACED else Waiting.READY
        case State.WAKING:
            return Waiting.WAKE_TAKEN_ON if phase == Phase.PLACED else Waiting.AWAKE
        case State.DRAINING if desired == Desired.STOP:
            return Waiting.DRAINED
        case State.DRAINING:
            return Waiting.ASLEEP if is_falling_asleep(state, phase, desired) else Waiting.CALLED_BACK
    return _ONLY.get(state)


_ONLY = {
    S.PENDING: Waiting.PLACE,
    S.RUNNING: Waiting.OWN_END,
    S.SLEEPING: Waiting.WAKER,
    S.STOPPING: Waiting.STOPPED,
    S.FAILED: Waiting.REBUILD,
}
