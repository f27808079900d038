"""What an engine says of its own load, and how loads compare (GW-04, engine_aware).

Pure: reads the Prometheus text of the engines of the catalog. Three values: told, stale (told too long ago)
and never told; whoever balances must not take the last two for a load of zero.
"""

import math

import msgspec

from agent.engines.base import Metrics
from agent.engines.catalog import ENGINES


class EngineLoad(msgspec.Struct, frozen=True):
    """`at`: when it was told, seconds of the clock of whoever asked; `in_flight`: this process's calls there
    at that moment. `kv_use` 0 to 1, None = this engine doesn't say."""

    running: float
    waiting: float
    kv_use: float | None
    at: float
    in_flight: int = 0


def metrics_path(engine: str) -> str:
    """Where an engine tells its load; "" for one that isn't of the catalog."""
    known = ENGINES.get(engine)
    return "" if known is None else known.metrics.path


def read_load(engine: str, body: bytes, *, at: float, in_flight: int) -> EngineLoad | None:
    """None where the text doesn't say how many requests run and wait, or what it says can't be compared: what
    is no number would leave a route without a least busy engine, and no JSON can hold it."""
    known = ENGINES.get(engine)
    if known is None:
        return None
    names: Metrics = known.metrics
    found: dict[str, list[float]] = {names.running_gauge: [], names.waiting_gauge: [], names.kv_gauge: []}
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith("#"):
            continue
        values = found.get(line.partition("{")[0].partition(" ")[0])
        if values is not None:
            try:
                values.append(float(line.rsplit(" ", 1)[1]))
            except (IndexError, ValueError):
                return None
    running, waiting, kv_use = found[names.running_gauge], found[names.waiting_gauge], found[names.kv_gauge]
    if not running or not waiting:
        return None
    # An engine of several ranks tells each by itself; the fullest one is where a request would wait.
    fullest = max(kv_use) if names.kv_gauge and kv_use else None
    told = (sum(running), sum(waiting), *kv_use)
    if not all(math.isfinite(value) and value >= 0 for value in told):
        return None
    return EngineLoad(told[0], told[1], fullest, at, in_flight)


def weigh(load: EngineLoad, in_flight: int, *, with_kv: bool) -> float:
    """How much a further request would have to share there. A request that waits counts twice, since the next
    one waits behind it; a memory that is full of other requests' tokens up to doubles it. What this process
    has sent there or taken back since the engine spoke is counted in."""
    since = in_flight - load.in_flight
    share = max(0.0, load.running + since) + 2 * load.waiting
    return (share + 1) * (1 + (load.kv_use or 0.0 if with_kv else 0.0))
