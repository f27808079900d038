"""When a service is idle, and what becomes of a replica that has left the routes (SLEEP-06).

Pure. An idle replica leaves the routes first and is only then put to sleep: each gateway must say that it
serves a table without it and has no call of it, which then stays true (`routing.load`). Until that is said
any sign of use calls it back. What no gateway can tell is not taken for idleness.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from agent.contract.states import Desired, Phase
from apps.routing.load import Source, is_quiet


@dataclass(frozen=True)
class Terms:
    """Seconds: a gateway that said nothing for `fresh_s` is silent, one for `forget_s` is gone."""

    fresh_s: float
    forget_s: float


@dataclass(frozen=True)
class Serving:
    """A replica that serves since `since`. `asked_at`: when its service was last asked for."""

    task_id: str
    group_id: str
    since: datetime
    asked_at: datetime | None
    idle_s: float


@dataclass(frozen=True)
class Leaving:
    """A replica that left the routes with the table `left_table`; None = no gateway has a call of it, as is
    known already. `idle_s`: the timeout that ran out; None = somebody asked."""

    task_id: str
    group_id: str
    left_table: int | None
    since: datetime
    asked_at: datetime | None
    desired: Desired
    phase: Phase
    idle_s: float | None


class Step(StrEnum):
    """`call_back`: into the routes again. `sleep`: its node is told. `wake`: it is asked to wake as soon as
    it sleeps. `over`: no call of it is left. `stop`: the same, and it was to stop."""

    WAIT = "wait"
    CALL_BACK = "call_back"
    SLEEP = "sleep"
    WAKE = "wake"
    OVER = "over"
    STOP = "stop"


def are_heard(sources: Collection[Source], now: datetime, terms: Terms) -> bool:
    """Whether every gateway has spoken lately, and there is one."""
    present = [source for source in sources if not source.left]
    silent = timedelta(seconds=terms.fresh_s)
    return bool(present) and all(now - source.said_at <= silent for source in present)


def gone(sources: Collection[Source], now: datetime, listening: datetime, terms: Terms) -> list[Source]:
    """Those that left, and those that died: silent for `forget_s` while somebody listened. `listening`: since
    when that is so, for while nobody could write nobody was silent."""
    patience = timedelta(seconds=terms.forget_s)
    return [source for source in sources if source.left or now - max(source.said_at, listening) > patience]


def is_idle(replica: Serving, sources: Collection[Source], busy: Collection[str], now: datetime) -> bool:
    """Whether a replica may leave the routes to sleep. `busy`: groups with a call in flight. Asked of
    services with an idle timeout, while all gateways are heard."""
    since = max(replica.since, replica.asked_at or replica.since)
    wanted = replica.group_id in busy or _is_held(replica.group_id, sources)
    return not wanted and now - since >= timedelta(seconds=replica.idle_s)


def next_step(replica: Leaving, sources: list[Source], busy: Collection[str]) -> Step:
    """What a replica that has left the routes does next."""
    known = replica.left_table is None
    quiet = known or is_quiet(sources, replica.task_id, replica.left_table or 0)
    if replica.desired == Desired.STOP:
        return Step.STOP if quiet else Step.WAIT
    wanted = replica.idle_s is not None and _is_wanted(replica, replica.idle_s, sources, busy)
    if replica.phase == Phase.READY:
        if wanted:
            return Step.CALL_BACK
        return Step.SLEEP if quiet else Step.WAIT
    if wanted and replica.desired == Desired.SLEEP:
        return Step.WAKE
    return Step.OVER if quiet and not known else Step.WAIT


def _is_wanted(replica: Leaving, idle_s: float, sources: list[Source], busy: Collection[str]) -> bool:
    """Whether its service was used after all: a call runs, waits, or came. When it left, the last one that
    was known of lay its whole timeout back, so that any later one is news, whatever clock dates it."""
    asked = replica.asked_at is not None and replica.asked_at + timedelta(seconds=idle_s) > replica.since
    return asked or replica.group_id in busy or _is_held(replica.group_id, sources)


def _is_held(group_id: str, sources: Collection[Source]) -> bool:
    return any(source.load.held.get(group_id) for source in sources)


def busy_groups(sources: Collection[Source], group_of: Mapping[str, str]) -> frozenset[str]:
    """Groups with a call in flight; `group_of` by task id. What a gateway said that is gone counts still."""
    tasks = {task_id for source in sources for task_id in source.load.in_flight}
    return frozenset(group_of[task_id] for task_id in tasks if task_id in group_of)
