"""Card time: how long a task held how much of its cards, as what (GW-18). Pure: no framework, no clock.

One unit is a card held alone for a millisecond; a promise of 40 % counts 0.4 of it. It is counted from the
placement until the node confirmed the end, but not while the task had failed or was moved away: what then
still stands there is the platform's business. Days are those of UTC.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from agent.contract.states import State


class Kind(StrEnum):
    """As what a card was held: to load, serve or end; asleep; asleep while lent to other work."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    LENT = "lent"


_RUNS = frozenset({State.SCHEDULING, State.RUNNING, State.DRAINING, State.WAKING, State.STOPPING})
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, [since, until)."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Share:
    """What is held of one card: percent of it (100 = all), and when it was lent."""

    percent: int
    lent: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """One attempt's hold on its cards. `moves` are its changes of state in the order of time."""

    span: Span
    shares: tuple[Share, ...]
    moves: Sequence[tuple[datetime, str]]


def count(holding: Holding, *, first_day: date | None = None) -> Mapping[tuple[date, Kind], int]:
    """Milliseconds of card time by day and kind, of the days from `first_day` on (None = all)."""
    found: dict[tuple[date, Kind], int] = defaultdict(int)
    for span, kind in _spans(holding):
        for share in holding.shares:
            for part, as_what in _parted(span, kind, share.lent):
                for day, length_ms in _by_day(part):
                    found[day, as_what] += length_ms * share.percent
    return {key: units // 100 for key, units in found.items() if first_day is None or key[0] >= first_day}


def _spans(holding: Holding) -> Iterable[tuple[Span, Kind]]:
    """The stretches that count, each as running or sleeping. Before its first move it was being placed."""
    since, kind = holding.span.since, _kind_of(State.SCHEDULING)
    for at, state in [*holding.moves, (holding.span.until, "")]:
        until = min(max(at, since), holding.span.until)
        if kind is not None and until > since:
            yield Span(since, until), kind
        since, kind = until, _kind_of(state)


def _kind_of(state: str) -> Kind | None:
    if state == State.SLEEPING:
        return Kind.SLEEPING
    return Kind.RUNNING if state in _RUNS else None


def _parted(span: Span, kind: Kind, lent: Sequence[Span]) -> Iterable[tuple[Span, Kind]]:
    """A sleeping stretch without what was lent of it, and that apart. Loans of a card do not overlap."""
    since = span.since
    if kind is Kind.SLEEPING:
        for loan in sorted(lent, key=lambda one: one.since):
            begin, end = max(loan.since, since), min(loan.until, span.until)
            if end <= begin:
                continue
            if begin > since:
                yield Span(since, begin), kind
            yield Span(begin, end), Kind.LENT
            since = end
    if span.until > since:
        yield Span(since, span.until), kind


def _by_day(span: Span) -> Iterable[tuple[date, int]]:
    since, until = span.since.astimezone(UTC), span.until.astimezone(UTC)
    while since < until:
        midnight = datetime.combine(since.date() + timedelta(days=1), time(), UTC)
        end = min(midnight, until)
        yield since.date(), _ms(end) - _ms(since)
        since = end


def _ms(at: datetime) -> int:
    """Whole milliseconds since 1970. Moments are cut, not lengths: so the parts of a time, by midnights and
    moves, are together as long as the time."""
    return (at - _EPOCH) // _MS
