"""The processes of a soak: a gateway and the engines behind it, whose faults follow each other in turn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from apps.core.free_ports import free_ports

ROOT = Path(__file__).parents[2]
ENGINES = 4
LIMIT_S = float(os.environ.get("SOAK_LIMIT_S") or 6)
"""How long the gateway waits for an engine's next byte; a machine that stalls so long fails calls itself."""
# One engine at a time, so that there always are others. How long each fault lasts: above the 5 s for which an
# engine that fails is passed over, so that calls try it in between.
FAULTS = {"die": 7.0, "hang": LIMIT_S + 2, "reset": 7.0, "garbage": 7.0}
WELL_S = 3.0


class Engine:
    """A process that can be killed and come back at the same port."""

    def __init__(self, port: int, journal: Path, gap_s: float) -> None:
        self.port = port
        self.journal = journal
        self._gap_s = gap_s
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        words = ("-m", "bench.gateway_soak.engine", str(self.port), str(self.journal), str(self._gap_s))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *words, cwd=ROOT, stdin=asyncio.subprocess.PIPE
        )
        await listening(self.port)

    async def fail(self, fault: str, for_s: float) -> None:
        if fault == "die":
            await self.kill()
            await asyncio.sleep(for_s)
            await self.start()
            return
        self._order(fault)
        await asyncio.sleep(for_s)
        self._order("well")

    def _order(self, mode: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{mode}\n".encode())

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Running:
    """Made by `running`. `made`: how often each fault was there."""

    def __init__(self, folder: Path, gap_s: float) -> None:
        self.port, self.metrics_port, *ports = free_ports(2 + ENGINES)
        self.usage_dir = folder / "usage"
        self.log = folder / "gateway.log"
        self.made: Counter[str] = Counter()
        self.engines = [Engine(port, folder / f"engine-{port}.txt", gap_s) for port in ports]
        self.gateway: asyncio.subprocess.Process

    async def start(self) -> None:
        for engine in self.engines:
            await engine.start()
        ports = ",".join(str(engine.port) for engine in self.engines)
        words = (str(self.port), str(self.metrics_port), str(self.usage_dir), str(LIMIT_S), ports)
        with self.log.open("w") as log:
            self.gateway = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.gateway_soak.gateway", *words),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,  # as which it is measured
            )
        await listening(self.port)

    async def go_wrong(self) -> None:
        """One engine and one fault after the other, until it is cancelled, at a moment when all are well."""
        for engine, (fault, for_s) in zip(
            itertools.cycle(self.engines), itertools.cycle(_TURNS), strict=False
        ):
            await asyncio.sleep(WELL_S)
            self.made[fault] += 1
            await asyncio.shield(engine.fail(fault, for_s))

    async def stop_gateway(self) -> int:
        """Asks it to end; its exit status."""
        self.gateway.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.gateway.wait(), 30)

    async def end(self) -> None:
        for engine in self.engines:
            await engine.kill()
        if self.gateway.returncode is None:
            self.gateway.kill()
            await self.gateway.wait()


# Each fault meets each engine in time: of four and five one after the other no pair is left out.
_TURNS = [*FAULTS.items(), ("reset", FAULTS["reset"])]


@contextlib.asynccontextmanager
async def running(folder: Path, gap_s: float) -> AsyncIterator[Running]:
    made = Running(folder, gap_s)
    try:
        await made.start()
        yield made
    finally:
        await made.end()


async def listening(port: int, within_s: float = 60.0) -> None:
    """Waits until somebody listens there. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)
