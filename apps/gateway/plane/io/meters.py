"""What the gateway counts for `/metrics` (OPS-04): calls by ending, tokens, times, faults of engines.

Owns the metrics and how they are labelled. Labels are closed sets, and the names of models that a route
was found for: never a tenant, key, member or replica, and never a name as a caller sent it. Gauges are set
here by hand instead of being asked at the scrape, so that several processes can share one folder of values
(PROMETHEUS_MULTIPROC_DIR).
"""

from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from apps.usage.record import Ending, UsageEntry

MODELS_MAX = 500
"""As many models get a series of their own; those that come later share `other`."""
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


_tokens = ("prompt", "completion", "cached")


def label_of(model: str) -> str:
    """The label of a model that a route was found for; bounded by MODELS_MAX a process."""
    if model in _named:
        return model
    if len(_named) >= MODELS_MAX:
        return "other"
    _named.add(model)
    return model


def count_call(entry: UsageEntry) -> None:
    """A call that left a record."""
    _child(CALLS, entry.ending.value, str(entry.http_status)).inc()
    stream = "yes" if entry.stream else "no"
    _child(DURATION, stream).observe(entry.duration_ms / 1000)
    if entry.ttft_ms is not None:
        _child(FIRST, stream).observe(entry.ttft_ms / 1000)
    if entry.ending not in (Ending.REFUSED, Ending.NO_BACKEND) and entry.route_id:
        model = label_of(entry.model)
        counts = (entry.prompt_tokens, entry.completion_tokens, entry.cached_tokens)
        for kind, count in zip(_tokens, counts, strict=True):
            if count:
                _child(TOKENS, model, kind).inc(count)


def count_turned_away(status: int) -> None:
    """A request that was refused before it could leave a record: no key, no such address."""
    _child(CALLS, "turned_away", str(status)).inc()


def enter(model: str) -> None:
    """A call goes to a replica; `leave` must follow."""
    _child(IN_FLIGHT, label_of(model)).inc()


def leave(model: str) -> None:
    _child(IN_FLIGHT, label_of(model)).dec()


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


def note_journal(waiting: int, newly_lost: int) -> None:
    """Records that wait in memory, and those lost since the last note."""
    WAITING.set(waiting)
    if newly_lost:
        LOST.inc(newly_lost)
