"""What the gateway asks of the database and tells it, off its event loop: tables, versions, keys, load.

The only module of the gateway with the ORM behind it. Connections live in its own threads, never
as long as a call.
"""

import asyncio
import math
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

from django.db import DatabaseError, close_old_connections

from apps.core.clock import utc_now
from apps.gateway.incarnation import is_dead
from apps.routing import gateways
from apps.routing.heat import hot_replicas
from apps.routing.load import Load
from apps.routing.published import find_key, load_table, read_version
from apps.routing.table import Key, Table
from apps.tenants.services import touch_keys

T = TypeVar("T")


class DatabaseSource:
    """A TableSource, a KeyFinder, the last-used times, a Listener and the cards' heat, for the process called
    `name`. All raise django.db.Error when it is away. Each `look_round_s` it tells, too, which gateways that
    ran beside it are dead."""

    def __init__(self, name: str, *, lookups_at_once: int, look_round_s: float) -> None:
        self._name = name
        self._known = False
        self._look_round_s = look_round_s
        self._looked_at = -math.inf
        self._tables = ThreadPoolExecutor(1, thread_name_prefix="gateway-tables")
        self._lookups = ThreadPoolExecutor(lookups_at_once, thread_name_prefix="gateway-keys")

    async def load(self) -> Table:
        return await _off_loop(self._tables, self._load)

    def _load(self) -> Table:
        """Nothing is served before this process is known to those who stop replicas."""
        if not self._known:
            gateways.say(self._name, Load(), utc_now())
            self._known = True
        return load_table()

    async def say(self, load: Load, *, left: bool = False) -> None:
        await _off_loop(self._tables, lambda: self._say(load, left))

    def _say(self, load: Load, left: bool) -> None:
        gateways.say(self._name, load, utc_now(), left=left)
        if time.monotonic() - self._looked_at >= self._look_round_s:
            self._looked_at = time.monotonic()
            gateways.end_dead(is_dead)

    async def version(self) -> int:
        return await _off_loop(self._tables, read_version)

    async def heat(self, at_least_c: int) -> dict[str, int]:
        return await _off_loop(self._tables, lambda: hot_replicas(at_least_c, utc_now()))

    async def find_key(self, digest: str) -> Key | None:
        return await _off_loop(self._lookups, lambda: find_key(digest))

    async def touch_keys(self, used: dict[str, float]) -> None:
        """Stores the last use of keys, by key id and epoch seconds (TEN-06)."""
        times = {key_id: datetime.fromtimestamp(at, UTC) for key_id, at in used.items()}
        await _off_loop(self._tables, lambda: touch_keys(times))


async def _off_loop(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    def run() -> T:
        close_old_connections()
        try:
            return work()
        except DatabaseError as error:
            # Its frames hold cursors of this thread's connection. Dropped in the loop's thread they
            # would wait there while the connection is busy: up to the database's lock timeout.
            for one in (error, error.__cause__, error.__context__):
                traceback.clear_frames(one.__traceback__ if one else None)
            raise
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(pool, run)
