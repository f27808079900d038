"""Asks, beside the calls: backends whether they are well, engines for their load, the fleet for hot cards.

Owns when it is asked and of whom; what follows from the answers is in core/circuit.py and core/choice.py.
Never touches a container (GW-08), and never a call: each round is bounded and its faults end with it.

An agent watches its engines from beside them, and the table lists ready ones only. What it can't see is
whether this process reaches them: that is asked here, of the backends of models in use, so that the cost goes
with the use. External engines have no agent, so nobody else asks them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.engine_load import metrics_path, read_load
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.connection import Unreachable
from apps.routing.table import Replica

log = logging.getLogger("heteroflow.gateway")
HEALTH_PATH = "/health"  # of every engine of the catalog; an answer of 4xx is one, too
EXTERNAL_PATH = "/v1/models"

Heat = Callable[[int], Awaitable[Mapping[str, int]]]
"""Degrees of the hottest card of each replica that has one at least so hot, by task id. Raises any Exception
while that can't be read."""


class Asker(Protocol):
    async def get(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]: ...


class Probes:
    def __init__(
        self, choosing: Choosing, upstream: Asker, config: GatewayConfig, *, heat: Heat | None = None
    ) -> None:
        self._choosing = choosing
        self._upstream = upstream
        self._config = config
        self._heat = heat
        self._slots = asyncio.Semaphore(config.probes_at_once)
        self._tasks: list[asyncio.Task[None]] = []
        self._failing = False

    def start(self) -> None:
        config = self._config
        rounds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (config.probe_period_s, self.probe_all),
            (config.engine_load_poll_s, self.ask_loads),
        ]
        if self._heat is not None and config.heat_limit_c > 0:
            rounds.append((config.heat_poll_s, self.ask_heat))
        self._tasks = [
            asyncio.create_task(_repeat(period_s, work), name=f"gateway-{work.__name__}")
            for period_s, work in rounds
            if period_s > 0
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def probe_all(self) -> None:
        """One round of active probes."""
        asked: dict[str, Replica] = {}
        tenants: dict[str, set[str]] = {}
        for tenant_id, route in self._choosing.used_routes(self._config.probe_used_s):
            for one in route.replicas:
                asked[one.task_id] = one
                tenants.setdefault(one.task_id, set()).add(tenant_id)
        await self._each(asked, lambda one: self._probe(one, tenants[one.task_id]))

    async def ask_loads(self) -> None:
        """One round of asking engines behind `engine_aware` routes that have a choice (GW-04)."""
        routes = self._choosing.used_routes(self._config.probe_used_s)
        asked = {
            one.task_id: one
            for _, route in routes
            if route.balancing == "engine_aware" and len(route.replicas) > 1
            for one in route.replicas
            if metrics_path(one.engine)
        }
        await self._each(asked, self._ask_load)

    async def ask_heat(self) -> None:
        """One round of reading hot cards. While it fails, what was known last holds (GW-07)."""
        if self._heat is None:
            return
        try:
            self._choosing.note_heat(await self._heat(self._config.heat_release_c))
        except Exception as error:
            if not self._failing:
                log.warning("the temperature of cards can't be read: %s", type(error).__name__)
            self._failing = True
            return
        self._failing = False

    async def _each(self, replicas: Mapping[str, Replica], ask: Callable[[Replica], Awaitable[None]]) -> None:
        async def one(replica: Replica) -> None:
            async with self._slots:
                await ask(replica)

        async with asyncio.TaskGroup() as group:
            for replica in replicas.values():
                group.create_task(one(replica))

    async def _probe(self, replica: Replica, tenants: Iterable[str]) -> None:
        path = EXTERNAL_PATH if replica.external else HEALTH_PATH
        try:
            status, _ = await self._upstream.get(replica, path, self._config.probe_timeout_s)
            reached, well = True, status < 500
        except Unreachable as failure:
            reached, well = not failure.refused, False
        except (TimeoutError, CallError):
            reached, well = True, False
        self._choosing.note_probe(replica, tenants, reached=reached, well=well)

    async def _ask_load(self, replica: Replica) -> None:
        """An engine that doesn't say is left as it was, and what it said grows stale."""
        in_flight = self._choosing.live.in_flight.get(replica.task_id, 0)
        timeout_s = self._config.engine_load_fresh_s
        try:
            status, body = await self._upstream.get(replica, metrics_path(replica.engine), timeout_s)
        except (Unreachable, TimeoutError, CallError):
            return
        at = time.monotonic()
        load = read_load(replica.engine, body, at=at, in_flight=in_flight) if status == 200 else None
        if load is not None:
            self._choosing.note_load(replica, load)


async def _repeat(period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:
            log.exception("a round of the gateway's own questions failed")
