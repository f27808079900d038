"""Keeps the published table in this process's memory, whole, by version (architecture 4, Serve).

Reads the version every second, the table on a change and each 5 minutes. While its source fails
the last table goes on serving. Never merges: a table is replaced or kept.
"""

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from apps.gateway.plane.core.config import GatewayConfig
from apps.routing.table import Table

log = logging.getLogger("heteroflow.gateway")


class TableSource(Protocol):
    """Where tables come from. Both raise any Exception while the source is away."""

    async def load(self) -> Table: ...

    async def version(self) -> int: ...


class Tables:
    """`current` is the newest whole table, None until the first was read."""

    def __init__(self, source: TableSource, config: GatewayConfig) -> None:
        self._source = source
        self._config = config
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._loaded_at = 0.0
        self._failing = False
        self._checked_at = 0.0
        self._changed = asyncio.Event()
        self.current: Table | None = None

    async def start(self) -> None:
        """Tries to read the table once, then follows it in the background."""
        await self.refresh()
        self._task = asyncio.create_task(self._follow(), name="gateway-tables")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def refresh(self) -> bool:
        """Brings the table up to date now; False when the source could not be read (logged once)."""
        async with self._lock:
            try:
                async with asyncio.timeout(self._config.table_timeout_s):
                    await self._bring_up_to_date()
            except Exception as error:
                if not self._failing:
                    log.warning(
                        "routes can't be read (%s); the last ones go on serving", type(error).__name__
                    )
                self._failing = True
                return False
        if self._failing:
            log.info("routes can be read again")
        self._failing = False
        return True

    async def _bring_up_to_date(self) -> None:
        due = time.monotonic() - self._loaded_at >= self._config.full_reload_s
        if self.current is None or due or await self._source.version() != self.current.version:
            self.current = await self._source.load()
            self._loaded_at = time.monotonic()
            self._changed.set()
            self._changed = asyncio.Event()
        self._checked_at = time.monotonic()

    async def changed(self, within_s: float) -> None:
        """Waits for the next table, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    def age_s(self) -> float | None:
        """Seconds since the table was last known to be current; None before the first was read."""
        return None if self.current is None else time.monotonic() - self._checked_at

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._config.version_poll_s)
            await self.refresh()
