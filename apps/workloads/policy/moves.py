"""The table of allowed moves (LIFE-02) and the group state that follows from its tasks' (LIFE-05).

Pure: no Django, no clock.
"""

from collections.abc import Collection

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
