"""Asks replicas: one pool of connections an attempt, the engine's own credential, its own model name.

Sends nothing of the caller's but the body. Never retries and never follows a redirect; its callers decide.
"""

import asyncio
import time

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import read_model_id
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.told import REFUSES_US
from apps.gateway.plane.io.coalesce import Asking
from apps.gateway.plane.io.connection import Connection, Unreachable
from apps.gateway.plane.io.pool import Pool
from apps.routing.table import Replica

__all__ = ["Connection", "Unreachable", "Upstream"]
_NAMES_MAX = 10_000


class Upstream:
    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._pools: dict[tuple[str, int], Pool] = {}
        self._pruning: asyncio.Task[None] | None = None
        self._names: dict[tuple[str, int], tuple[float, str]] = {}
        self._asking = Asking[tuple[str, int], str]()

    async def start(self) -> None:
        self._pruning = asyncio.create_task(self._prune(), name="gateway-connections")

    async def stop(self) -> None:
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait({self._pruning})
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def kept(self, replica: Replica) -> Connection | None:
        """A connection that has served before, if there is one. Its caller closes what it gets."""
        pool = self._pools.get((replica.task_id, replica.attempt))
        if pool is None or pool.replica is not replica:
            pool = self._pool(replica)
        return pool.take()

    async def connect(self, replica: Replica) -> Connection:
        """A new one. Its caller closes what it gets. Raises Unreachable."""
        return await self._pool(replica).connect()

    async def get(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a small answer. Raises Unreachable, TimeoutError or CallError 502; that of a
        longer body than `big_body_bytes` is cut off there."""
        limit, body = self._config.big_body_bytes, bytearray()
        async with asyncio.timeout(timeout_s):
            pool = self._pool(replica)
            # Seldom asked, so none is kept for it: an engine's connections are its calls.
            response = await pool.connect()

            def take(piece: bytes) -> None:
                body.extend(piece[: limit - len(body)])
                if len(body) >= limit:
                    response.stop()

            try:
                response.send(pool.head("GET", path) + b"Connection: close\r\n\r\n", b"")
                await response.head()
                await response.pump(take)
                return response.status, bytes(body)
            finally:
                response.abort()
                response.close()

    async def served_name(self, replica: Replica) -> str:
        """What the engine calls its model, by its own /v1/models if the table doesn't say (GW-05).

        Believed for `model_name_ttl_s`; an older one is used when the engine doesn't answer.
        Raises Unreachable or CallError when nothing is known.
        """
        slot = (replica.task_id, replica.attempt)
        known = self._names.get(slot)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            return await self._asking.ask(slot, self._ask_name(replica))
        except (Unreachable, errors.CallError):
            if known is not None:
                return known[1]
            raise

    def forget_name(self, replica: Replica) -> None:
        """The engine didn't know its own name of before, or the call's address: it is asked again next time.
        Where it does not say then the name is used on, so that no call takes it from the others (GW-05)."""
        slot = (replica.task_id, replica.attempt)
        if (known := self._names.get(slot)) is not None:
            self._names[slot] = (0.0, known[1])

    async def _ask_name(self, replica: Replica) -> str:
        limit_s = self._config.model_name_timeout_s
        try:
            status, body = await self.get(replica, "/v1/models", limit_s)
        except TimeoutError:
            raise errors.upstream_timeout("model list", limit_s) from None
        if status in REFUSES_US:
            raise errors.upstream_refused_us()
        name = read_model_id(body) if status == 200 else None
        if name is None:
            raise errors.upstream_unreadable("to /v1/models names no model")
        if len(self._names) > _NAMES_MAX:
            self._names.clear()
        self._names[replica.task_id, replica.attempt] = (
            time.monotonic() + self._config.model_name_ttl_s,
            name,
        )
        return name

    def _pool(self, replica: Replica) -> Pool:
        slot = (replica.task_id, replica.attempt)
        pool = self._pools.get(slot)
        if pool is not None and pool.serves(replica):
            return pool
        if pool is not None:
            pool.close()
        pool = self._pools[slot] = Pool(replica, self._config)
        return pool

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(self._config.keepalive_s / 4)
            self._pools = {slot: pool for slot, pool in self._pools.items() if pool.prune()}
