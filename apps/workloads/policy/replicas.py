"""Which replicas a service of so many keeps (LIFE-04): pure, no Django, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.contract.states import Desired, Phase, State

# How much would be lost with a replica in this state; what is not here holds nothing to lose.
_WORTH = {
    State.RUNNING: 4,
    State.WAKING: 3,
    State.SCHEDULING: 3,
    State.DRAINING: 2,
    State.SLEEPING: 2,
    State.PENDING: 1,
}
_ON_ITS_WAY_OUT = frozenset({State.STOPPED, State.COMPLETED, State.STOPPING})
MAY_SLEEP = frozenset({State.RUNNING, State.WAKING, State.DRAINING, State.SLEEPING})


@dataclass(frozen=True)
class Replica:
    task_id: int
    rank: int
    state: State
    phase: Phase
    desired: Desired

    @property
    def wanted(self) -> bool:
        return self.desired != Desired.STOP and self.state not in _ON_ITS_WAY_OUT

    @property
    def worth(self) -> tuple[int, bool, int]:
        """What serves before what starts, what starts before what sleeps or waits; then the lower rank."""
        return _WORTH.get(self.state, 0), self.phase == Phase.READY, -self.rank


@dataclass(frozen=True)
class Scaling:
    """Row ids of tasks: those that serve on, are woken, put to sleep, leave, or start again, and how many
    are made."""

    kept: tuple[int, ...] = ()
    woken: tuple[int, ...] = ()
    put_to_sleep: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    restarted: tuple[int, ...] = ()
    made: int = 0

    @property
    def moves(self) -> bool:
        return bool(self.woken or self.put_to_sleep or self.leaving or self.restarted or self.made)


def decide_replicas(replicas: Iterable[Replica], wanted: int) -> Scaling:
    """Never a step that leaves a service without one that serves while it has one: the least leaves first.
    To none: one stays asleep, if one is there that can (SCALE-06). Sleepers among those kept are woken."""
    rows = list(replicas)
    present = sorted((one for one in rows if one.wanted), key=lambda one: one.worth, reverse=True)
    if wanted == 0:
        asleep = [one for one in present[:1] if one.state in MAY_SLEEP]
        return Scaling(
            kept=_ids(asleep),
            put_to_sleep=_ids(one for one in asleep if one.desired != Desired.SLEEP),
            leaving=_ids(one for one in present if one not in asleep),
        )
    kept, leaving = present[:wanted], present[wanted:]
    missing = wanted - len(kept)
    stopped = sorted((one for one in rows if one.state == State.STOPPED), key=lambda one: one.rank)
    return Scaling(
        kept=_ids(kept),
        woken=_ids(one for one in kept if one.desired == Desired.SLEEP),
        leaving=_ids(leaving),
        restarted=_ids(stopped[:missing]),
        made=max(0, missing - len(stopped)),
    )


def _ids(rows: Iterable[Replica]) -> tuple[int, ...]:
    return tuple(one.task_id for one in rows)
