"""Finds the key of a call: in the table, else by asking the database, bounded.

"Unknown" and "could not be asked" are two answers: the first is 401, the second 503, never the
other way round. Never sees a key itself, only its sha256.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.coalesce import Asking
from apps.gateway.plane.io.tables import Tables
from apps.routing.table import Key

log = logging.getLogger("heteroflow.gateway")
KeyFinder = Callable[[str], Awaitable[Key | None]]


class KeyDirectory:
    """`find` asks for one hash only once at a time, `key_lookups_at_once` hashes together, and
    remembers each answer for `key_negative_ttl_s`."""

    def __init__(self, tables: Tables, finder: KeyFinder, config: GatewayConfig) -> None:
        self._tables = tables
        self._finder = finder
        self._config = config
        self._slots = asyncio.Semaphore(config.key_lookups_at_once)
        self._asking = Asking[str, Key | None]()
        self._answers: dict[str, tuple[float, Key | None]] = {}

    async def find(self, digest: str) -> Key | None:
        """The key with this sha256, None when there is none. Raises CallError 503."""
        table = self._tables.current
        if table is not None and (key := table.keys.get(digest)) is not None:
            return key
        known = self._answers.get(digest)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            return await self._asking.ask(digest, self._ask(digest))
        except errors.CallError:
            raise
        except Exception as error:
            log.warning("a key could not be looked up: %s", type(error).__name__)
            raise errors.keys_unavailable(self._config.retry_after_s) from None

    async def _ask(self, digest: str) -> Key | None:
        try:
            async with asyncio.timeout(self._config.key_lookup_timeout_s), self._slots:
                key = await self._finder(digest)
        except Exception:
            meters.count_key_ask("failed")
            raise
        meters.count_key_ask("unknown" if key is None else "found")
        if key is not None:
            # A key that is newer than the table comes with routes that are newer, too. If they take
            # too long, the key is good all the same.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.key_lookup_timeout_s):
                    await self._tables.refresh()
        if len(self._answers) >= self._config.key_cache_size:
            self._answers.clear()
        self._answers[digest] = (time.monotonic() + self._config.key_negative_ttl_s, key)
        return key
