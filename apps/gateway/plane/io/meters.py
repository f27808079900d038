"""What the gateway counts for `/metrics` (OPS-04): calls by ending, tokens, times, faults of engines.

Owns the metrics and how they are labelled. Labels are closed sets, and the names of models that a route
was found for: never a tenant, key, member or replica, and never a name as a caller sent it. Gauges are set
here by hand instead of being asked at the scrape, so that several processes can share one folder of values
(PROMETHEUS_MULTIPROC_DIR). What every call counts is gathered in plain numbers and given to them each second.
"""

from bisect import bisect_right
from collections import Counter as Counted
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from apps.usage.record import Ending, UsageEntry

MODELS_MAX = 500
"""As many models get a series of their own; those that come later share `other`."""
BACKEND_STATES = ("passed_over", "half_open", "open", "hot")
COUNTED_AT_ONCE = 256
KINDS = ("prompt", "completion", "cached")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

CALLS = Counter("heteroflow_gateway_requests", "Calls ended, by ending and status.", ["ending", "status"])
TOKENS = Counter("heteroflow_gateway_tokens", "Tokens as recorded.", ["model", "kind"])
FIRST = Histogram(
    "heteroflow_gateway_time_to_first_token_seconds",
    "From the call's arrival to the first content; whole answers count in full.",
    ["stream"],
    buckets=SECONDS,
)
DURATION = Histogram(
    "heteroflow_gateway_duration_seconds",
    "From a call's arrival to its settlement.",
    ["stream"],
    buckets=SECONDS,
)
IN_FLIGHT = Gauge(
    "heteroflow_gateway_in_flight", "Calls at a replica now.", ["model"], multiprocess_mode="livesum"
)
UPSTREAM = Counter(
    "heteroflow_gateway_upstream_errors", "What engines and the way to them did wrong.", ["kind"]
)
KEY_ASKS = Counter(
    "heteroflow_gateway_key_asks", "Keys that were not in the table and asked of the database.", ["outcome"]
)
TABLE_VERSION = Gauge(
    "heteroflow_gateway_table_version",
    "Version of the published table; the oldest of several processes.",
    multiprocess_mode="livemin",
)
TABLE_AGE = Gauge(
    "heteroflow_gateway_table_age_seconds",
    "Since the table was last known to be current; the worst of several processes.",
    multiprocess_mode="livemax",
)
BACKENDS = Gauge(
    "heteroflow_gateway_backends",
    "Backends that something stands against, by what; the most that one of several processes sees.",
    ["state"],
    multiprocess_mode="livemax",
)
WAITING = Gauge(
    "heteroflow_gateway_records_waiting",
    "Usage records that could not be written to the journal yet.",
    multiprocess_mode="livesum",
)
LOST = Counter("heteroflow_gateway_records_lost", "Usage records that found no room any more.")

_named: set[str] = set()


@cache
def _child(metric: Any, *labels: str) -> Any:
    """One series; kept, since looking it up by its labels costs more than to count."""
    return metric.labels(*labels)


def label_of(model: str) -> str:
    """The label of a model that a route was found for; bounded by MODELS_MAX a process."""
    if model in _named:
        return model
    if len(_named) >= MODELS_MAX:
        return "other"
    _named.add(model)
    return model


class _Times:
    """Seconds by bucket since they were last given to their metric."""

    def __init__(self, metric: Histogram) -> None:
        self._metric = metric
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add_all(self, label: str, times_ms: list[int]) -> None:
        if not times_ms:
            return
        times_ms.sort()
        upto = [bisect_right(times_ms, bound * 1000) for bound in SECONDS]
        counts = self._counts.setdefault(label, [0] * (len(SECONDS) + 1))
        for bucket, (before, until) in enumerate(pairwise((0, *upto, len(times_ms)))):
            counts[bucket] += until - before
        self._sums[label] = self._sums.get(label, 0.0) + sum(times_ms) / 1000

    def give(self) -> None:
        for label, counts in self._counts.items():
            # `observe` takes one value at a time and would cost each call what is spared here.
            child = _child(self._metric, label)
            child._sum.inc(self._sums[label])
            for bucket, count in zip(child._buckets, counts, strict=True):
                if count:
                    bucket.inc(count)
        self._counts.clear()
        self._sums.clear()


_uncounted: list[UsageEntry] = []
_ended: Counted[tuple[str, int]] = Counted()
_spent: dict[str, list[int]] = {}
_flying: set[str] = set()
_first, _duration = _Times(FIRST), _Times(DURATION)


def count_call(entry: UsageEntry) -> None:
    """A call that left a record; `flush` gives it to the metrics. Many are counted at a time: what is done in
    one go costs a third of what is done between other things."""
    _uncounted.append(entry)
    if len(_uncounted) >= COUNTED_AT_ONCE:
        _count()


def _count() -> None:
    _ended.update([(one.ending.value, one.http_status) for one in _uncounted])
    for label, streams in (("no", False), ("yes", True)):
        of_kind = [one for one in _uncounted if one.stream is streams]
        _duration.add_all(label, [one.duration_ms for one in of_kind])
        _first.add_all(label, [one.ttft_ms for one in of_kind if one.ttft_ms is not None])
    for one in _uncounted:
        if one.route_id and one.ending is not Ending.REFUSED and one.ending is not Ending.NO_BACKEND:
            spent = _spent.get(one.model)
            if spent is None:
                spent = _spent[one.model] = [0, 0, 0]
            spent[0] += one.prompt_tokens
            spent[1] += one.completion_tokens
            spent[2] += one.cached_tokens
    _uncounted.clear()


def flush() -> None:
    """Gives the metrics what was counted since: each second, since it costs more than to count."""
    _count()
    for (ending, status), count in _ended.items():
        _child(CALLS, ending, str(status)).inc(count)
    for model, spent in _spent.items():
        for kind, count in zip(KINDS, spent, strict=True):
            if count:
                _child(TOKENS, label_of(model), kind).inc(count)
    _ended.clear()
    _spent.clear()
    _first.give()
    _duration.give()


def count_turned_away(status: int) -> None:
    """A request that was refused before it could leave a record: no key, no such address."""
    _child(CALLS, "turned_away", str(status)).inc()


def note_in_flight(calls: Mapping[str, int]) -> None:
    """Calls at replicas now, by model; models that are not named have none."""
    for model in _flying - calls.keys():
        _child(IN_FLIGHT, label_of(model)).set(0)
    labels: dict[str, int] = {}
    for model, count in calls.items():
        label = label_of(model)
        labels[label] = labels.get(label, 0) + count
    for label, count in labels.items():
        _child(IN_FLIGHT, label).set(count)
    _flying.clear()
    _flying.update(calls)


def count_upstream(kind: str) -> None:
    """`kind`: refused, closed, truncated, timeout, or status_4xx and the like."""
    _child(UPSTREAM, kind).inc()


def count_key_ask(outcome: str) -> None:
    """`outcome`: found, unknown or failed."""
    _child(KEY_ASKS, outcome).inc()


def note_table(version: int | None, age_s: float | None) -> None:
    """The table as it stands now; nothing is said before the first one was read."""
    if version is not None and age_s is not None:
        TABLE_VERSION.set(version)
        TABLE_AGE.set(age_s)


def note_backends(states: Mapping[str, int]) -> None:
    """How many backends stand how; states that are not named have none."""
    for state in BACKEND_STATES:
        _child(BACKENDS, state).set(states.get(state, 0))


def note_journal(waiting: int, newly_lost: int) -> None:
    """Records that wait in memory, and those lost since the last note."""
    WAITING.set(waiting)
    if newly_lost:
        LOST.inc(newly_lost)
