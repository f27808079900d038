"""Which backend a call goes to, with what this process knows of them: live counts, turns, failures.

Owns that knowledge and the waiting for a replica that may be called back; the rules are in core/choice.py.
Never speaks to a backend and never answers a caller.
"""

import asyncio
import random
from collections.abc import Collection

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.choice import NO_PINS, Choice, Failure, Pins, choose
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import Call
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.tables import Tables
from apps.routing.table import Key, Route


class Choosing:
    """`enter` or `find`, then `succeeded` or `failed` as it turns out, and `leave` in the end: once each."""

    def __init__(self, tables: Tables, live: LiveCounts, rng: random.Random, config: GatewayConfig) -> None:
        self._tables = tables
        self._rng = rng
        self._config = config
        self.live = live

    def enter(self, call: Call, key: Key, pins: Pins = NO_PINS, tried: Collection[str] = ()) -> Choice | None:
        """Chooses a replica and counts the call there, in one step of the loop: a replica that is not in the
        present table gets no new call, which whoever stops it relies on. `tried`: task ids that have failed
        this call. None = none can be had."""
        live = self.live
        choice = choose(
            self._routes(call, key),
            in_flight=live.in_flight,
            turns=live.turns,
            rng=self._rng,
            avoid=live.sidelined().union(tried),
            limit=self._config.replica_connections,
        )
        if choice is not None:
            live.enter(choice.replica.task_id, choice.route.group_id)
        return choice

    async def find(self, call: Call, key: Key, pins: Pins = NO_PINS, tried: Collection[str] = ()) -> Choice:
        """`enter`; where there is none, waits while a replica that has just left to sleep may be called back:
        that this call waits is what calls it back. Raises CallError 503 where none is to be had."""
        choice = self.enter(call, key, pins, tried)
        if choice is not None:
            return choice
        live, config = self.live, self._config
        now = asyncio.get_running_loop().time
        until = now() + config.call_back_wait_s
        while True:
            routes = self._routes(call, key)
            live.asked.update(route.group_id for route in routes)
            if any(route.replicas for route in routes):
                raise errors.backend_busy(call.model, config.retry_after_s)
            dozing = [route.group_id for route in routes if route.dozing]
            if not dozing or now() >= until:
                raise errors.no_backend(call.model, config.retry_after_s)
            live.hold(dozing)
            try:
                await self._tables.changed(until - now())
            finally:
                live.let_go(dozing)
            if (choice := self.enter(call, key, pins, tried)) is not None:
                return choice

    def succeeded(self, choice: Choice) -> None:
        """The replica has answered with anything but a failure of its own."""
        self.live.welcome(choice.replica.task_id)

    def failed(self, choice: Choice, kind: Failure) -> None:
        """The replica failed this call; what the caller did wrong is never told here."""
        if kind is Failure.REFUSED:
            self.live.sideline(choice.replica.task_id)

    def leave(self, choice: Choice) -> None:
        """The call is over there, however it ended."""
        self.live.leave(choice.replica.task_id, choice.route.group_id)

    def _routes(self, call: Call, key: Key) -> tuple[Route, ...]:
        """Those of the present table, whatever it was when the call was admitted."""
        table = self._tables.current
        of_tenant = {} if table is None else table.routes.get(key.tenant_id, {})
        return of_tenant.get(call.model, ())
