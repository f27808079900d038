"""`make soak`: mixed traffic on `make run-production`'s profile with its true durations, and a verdict.

    make soak DURATION=300 SOAK_GROWTH_MB=40
    make soak DURATION=3600 FAULTS=1          kills an agent, a worker and an engine in turn

Prints a table each minute. Ends with 1 where a call failed, where after the first minute a process grew by
more than SOAK_GROWTH_MB or SOAK_GROWTH_FILES descriptors or was replaced, or where the usage rows are not the
calls that were answered. With FAULTS a call may fail while what it met is killed, but not hang; one that was
cut off may have a row of usage; and everything has to be back within two minutes.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from typing import TypeVar

from bench.soak.faults import Faults
from bench.soak.growth import Held, look
from bench.soak.traffic import Counted, Seen, Traffic
from tests.production_stack import ProductionStack, running_production

DURATION_S = float(os.environ.get("DURATION") or 300)
LOOK_EVERY_S = 60.0
GROWTH_MB = float(os.environ.get("SOAK_GROWTH_MB") or 40)
GROWTH_FILES = int(os.environ.get("SOAK_GROWTH_FILES") or 30)
COUNTED_WITHIN_S = 60.0
WITH_FAULTS = os.environ.get("FAULTS", "0") not in ("", "0")
N = TypeVar("N", int, float)
SUMS = """
SELECT count(*), coalesce(sum(prompt_tokens), 0)::bigint, coalesce(sum(completion_tokens), 0)::bigint
FROM usage_usagerecord WHERE key_id = %s AND http_status = 200
"""


def main() -> int:
    logging.disable(logging.INFO)  # the table is what is read
    print(f"Starting the production profile; then {DURATION_S:g} s of traffic ...", flush=True)
    with running_production(true_durations=True) as stack:
        faults, total, excused = Faults(stack), Counter[str](), 0
        traffic = Traffic(stack, faults.excuses)
        held, first = look(stack), None
        traffic.start()
        if WITH_FAULTS:
            faults.start()
        started = time.monotonic()
        while (left := DURATION_S - (time.monotonic() - started)) > 0:
            time.sleep(min(left, LOOK_EVERY_S))
            now, seen = look(stack), traffic.take()
            first = first or now
            total += failures(seen)
            excused += sum(one.excused for one in seen.values())
            show(timedelta(seconds=round(time.monotonic() - started)), seen, held, now)
            held = now
        if WITH_FAULTS:
            faults.end()
        traffic.end()
        seen = traffic.take()
        total += failures(seen)
        excused += sum(one.excused for one in seen.values())
        show_calls("after the end", seen)
        complaints = [f"failed: {number} x {what}" for what, number in total.items()]
        killed = {made.what for made in faults.made}
        complaints += grown(first or held, look(stack), killed) + miscounted(stack, traffic, excused)
        complaints += faults.complaints()
        for made in faults.made:
            print(f"killed: {made.what}, answered again after {made.back_s} s")
        complaints += [f"logged: {line}" for line in stack.printed().splitlines() if "Traceback" in line]
    for complaint in complaints:
        print(f"NOT WELL  {complaint}")
    if not complaints:
        print(f"WELL  no call failed, nothing grew beyond {GROWTH_MB:g} MiB, every call was counted once")
    return 1 if complaints else 0


def failures(seen: dict[str, Seen]) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, one in seen.items():
        for what, number in one.refused.items():
            found[f"{kind}: {what}"] += number
    return found


def grown(first: Held, last: Held, killed: Collection[str] = ()) -> list[str]:
    """What grew too far since the first minute, or has other processes than then; but for what was killed."""
    said = []
    first, last = (_without(killed, held) for held in (first, last))
    for name, now in last.memory_mb.items():
        before = first.memory_mb.get(name)
        if before is None or first.ids[name] != last.ids[name]:
            said.append(f"{name}: another process than in the first minute")
        elif now - before > GROWTH_MB:
            said.append(f"{name}: {before:.0f} MiB after the first minute, {now:.0f} later")
    for name, files in last.descriptors.items():
        # Each connection of PostgreSQL opens the files of the tables that it has met.
        if not name.startswith("postgres") and files - first.descriptors.get(name, files) > GROWTH_FILES:
            said.append(
                f"{name}: {first.descriptors[name]} descriptors after the first minute, {files} later"
            )
    return said + [f"{name}: gone" for name in first.memory_mb if name not in last.memory_mb]


def _without(killed: Collection[str], held: Held) -> Held:
    def rest(values: dict[str, N]) -> dict[str, N]:
        return {name: value for name, value in values.items() if name.rpartition("-")[0] not in killed}

    return Held(rest(held.ids), rest(held.memory_mb), rest(held.descriptors), held.rows)


def miscounted(stack: ProductionStack, traffic: Traffic, excused: int = 0) -> list[str]:
    """Whether the rows say what the answers said, once the last calls had time to become rows. Calls that
    were cut off, `excused`, may have one each."""
    want, give_up_at = traffic.counted, time.monotonic() + COUNTED_WITHIN_S
    while True:
        found = Counted(*stack.rows(SUMS, traffic.key_id)[0])
        well = found == want or (excused > 0 and want.calls <= found.calls <= want.calls + excused)
        if well or time.monotonic() > give_up_at:
            break
        time.sleep(0.5)
    print(f"usage: answered {want}, rows {found}")
    return [] if well else [f"usage rows {found} are not the answers {want}"]


def show(when: timedelta, seen: dict[str, Seen], before: Held, now: Held) -> None:
    show_calls(str(when), seen)
    names = sorted(now.memory_mb)
    cells = [f"{name} {now.memory_mb[name]:.0f}/{now.descriptors[name]}" for name in names]
    print("  MiB/files: " + "  ".join(cells))
    rows = {name: number - before.rows.get(name, 0) for name, number in now.rows.items()}
    print("  rows: " + "  ".join(f"{name} {more:+d}" for name, more in rows.items() if more), flush=True)


def show_calls(when: str, seen: dict[str, Seen]) -> None:
    print(f"{when:<14}{'calls':>7}{'p50 ms':>9}{'p99 ms':>9}  failed")
    for kind, one in sorted(seen.items()):
        times = sorted(one.durations_s)
        middle, late = statistics.median(times), times[min(len(times) - 1, int(len(times) * 0.99))]
        refused = [f"{number} x {what}" for what, number in one.refused.items()]
        failed = ", ".join(refused + [f"{one.excused} excused"] * bool(one.excused)) or "-"
        print(f"  {kind:<12}{len(times):>7}{middle * 1000:>9.0f}{late * 1000:>9.0f}  {failed}")


if __name__ == "__main__":
    sys.exit(main())
