"""`make soak-gateway`: calls through the gateway while its engines go wrong in turn, and a verdict.

    make soak-gateway DURATION=1200 SOAK_CALLERS=450 SOAK_GAP_S=0.25 SOAK_GROWTH_MB=6

450 callers, three quarters of them with streams, call the gateway's own listener; one of four engines at a
time dies, hangs, resets or talks nonsense, and comes back. Ends with 1 where a call failed otherwise than its
engine made it, a caller got what wasn't meant for it, the records are not the calls, the gauge of calls
under way or the gateway's open files are not back where they were, or its memory grew after two minutes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from apps.usage.record import UsageEntry
from bench.gateway_soak.callers import Callers
from bench.gateway_soak.running import Running, running
from bench.gateway_soak.verdict import complaints, fates, grown
from bench.ours import KEY, MODEL
from bench.processes import cpu_s, memory_mb

DURATION_S = float(os.environ.get("DURATION") or 300)
CALLERS = int(os.environ.get("SOAK_CALLERS") or 450)
GAP_S = float(os.environ.get("SOAK_GAP_S") or 0.25)
"""Between two events of a stream; a stream has twenty, a plain answer comes after one gap."""
GROWTH_MB = float(os.environ.get("SOAK_GROWTH_MB") or 6)
SETTLED = 1
"""The look from which on memory has to be flat: the second; at the first it is still on its way up."""
FILES_LEFT = 8
"""More than before the first call; what the journal and the probes hold."""
LOOK_EVERY_S = min(60.0, DURATION_S / 4)
BACK_WITHIN_S = 20.0


async def soak(folder: Path) -> list[str]:
    """All complaints; prints a line each minute."""
    async with running(folder, GAP_S) as stack:
        url = f"http://127.0.0.1:{stack.port}/v1/chat/completions"
        callers = Callers(url, KEY, MODEL, count=CALLERS, gap_s=GAP_S, seed=1)
        files_before = files_of(stack)
        until = time.monotonic() + DURATION_S
        faults = asyncio.create_task(stack.go_wrong())
        calling = asyncio.create_task(callers.run(until))
        held_mb: list[float] = []
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, LOOK_EVERY_S))
            held_mb.append(memory_mb(stack.gateway.pid))
            show(timedelta(seconds=round(DURATION_S - until + time.monotonic())), stack, callers, held_mb[-1])
        await calling
        if faults.done():
            faults.result()  # an engine did not come back
        faults.cancel()
        said = grown(held_mb[SETTLED], held_mb[-1], GROWTH_MB)
        said += await still_under_way(stack.metrics_port)
        said += await still_open(stack, files_before)
        if status := await stack.stop_gateway():
            said.append(f"the gateway ended with {status}")
        lines = stack.log.read_text().splitlines()
        said += [f"logged: {line}" for line in lines if "Traceback" in line or "inside the gateway" in line]
        records = read_records(stack.usage_dir)
        judged = complaints(callers.calls, fates(one.journal.read_text() for one in stack.engines), records)
        said += [f"{number} x {what}" for what, number in judged.items()]
        missing = [fault for fault in ("die", "hang", "reset", "garbage") if not stack.made[fault]]
        said += [f"no engine was ever made to {fault}" for fault in missing]
        print(f"{len(callers.calls)} calls, {len(records)} records, faults: {dict(stack.made)}")
        for what, number in Counter(call.outcome for call in callers.calls).most_common():
            print(f"  {number:>8} {what}")
    return said


def files_of(stack: Running) -> int:
    """How many the gateway has open, sockets included."""
    return len(list(Path(f"/proc/{stack.gateway.pid}/fd").iterdir()))


def show(when: timedelta, stack: Running, callers: Callers, held_mb: float) -> None:
    whole = sum(call.outcome == "whole" for call in callers.calls)
    print(
        f"{when}  {len(callers.calls)} calls ended, {whole} whole, {callers.under_way} under way, "
        f"gateway {held_mb:.1f} MiB, {files_of(stack)} files, {cpu_s(stack.gateway.pid):.0f} s of processor",
        flush=True,
    )


async def still_under_way(metrics_port: int) -> list[str]:
    """What the gateway's own gauge says once all callers have ended; it has some seconds."""
    give_up_at = time.monotonic() + BACK_WITHIN_S
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{metrics_port}/metrics") as response:
                told = await response.text()
            (family,) = (
                family
                for family in text_string_to_metric_families(told)
                if family.name == "heteroflow_gateway_in_flight"
            )
            under_way = sum(sample.value for sample in family.samples)
            if not under_way:
                return []
            if time.monotonic() > give_up_at:
                return [f"the gauge of calls under way stays at {under_way:g}"]
            await asyncio.sleep(0.2)


async def still_open(stack: Running, before: int) -> list[str]:
    """Whether all connections of callers and to engines were given back once nobody calls."""
    give_up_at = time.monotonic() + BACK_WITHIN_S
    while (now := files_of(stack)) > before + FILES_LEFT:
        if time.monotonic() > give_up_at:
            return [f"files open: {before} before the first call, {now} after the last"]
        await asyncio.sleep(0.2)
    return []


def read_records(folder: Path) -> list[UsageEntry]:
    decode = msgspec.json.Decoder(UsageEntry).decode
    return [decode(line) for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines()]


def main() -> int:
    print(f"{CALLERS} callers for {DURATION_S:g} s ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(soak(Path(folder)))
    for complaint in said:
        print(f"NOT WELL  {complaint}")
    if not said:
        print("WELL  each fault was an engine's, each call has one record, nothing grew or stayed")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
