"""Which backend a call goes to, with what this process knows of them: counts, turns, circuits, heat, loads.

Owns that knowledge and the waiting for a replica that may be called back; the rules are in core/choice.py and
core/circuit.py. Never speaks to a backend and never answers a caller.

Circuits are each tenant's own: what one tenant's calls have met at an engine that several share takes it
from nobody else. What is known of a backend is of one attempt of it (an external engine's is its address),
and what a call or a question to an earlier one brings in late is dropped.
"""

import asyncio
import functools
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.admission import refuse_unready
from apps.gateway.plane.core.choice import NO_PINS, Choice, Failure, Pins, Standing, View, choose, judge
from apps.gateway.plane.core.circuit import WORDS, Circuit, Verdict
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.engine_load import EngineLoad
from apps.gateway.plane.core.request import Call
from apps.gateway.plane.core.stickiness import read_user
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.tables import Tables
from apps.routing.load import BackendWord, TenantWord
from apps.routing.table import Key, Replica, Route, Table

_NONE: dict[str, Circuit] = {}


class Choosing:
    """`enter` or `find`, then `succeeded` or `failed` as it turns out, and `leave` in the end: once each."""

    def __init__(self, tables: Tables, live: LiveCounts, rng: random.Random, config: GatewayConfig) -> None:
        self._tables = tables
        self._config = config
        self._failures: dict[tuple[str, str], tuple[int, str]] = {}  # by tenant id and task id
        self._circuits: dict[str, dict[str, Circuit]] = {}  # by tenant id, then task id
        self._loads: dict[str, EngineLoad] = {}
        self._heat: Mapping[str, int] = {}
        self._used: dict[tuple[str, str], float] = {}
        self._table: Table | None = None
        self._attempts: dict[str, int] = {}
        self._view = View(
            rng=rng,
            limit=config.replica_connections,
            load_fresh_s=config.engine_load_fresh_s,
            in_flight=live.in_flight,
            turns=live.turns,
            loads=self._loads,
        )
        self.live = live

    # ---- one call ----

    def enter(
        self,
        call: Call,
        key: Key,
        pins: Pins = NO_PINS,
        tried: Collection[str] = (),
        routes: tuple[Route, ...] | None = None,
    ) -> Choice | None:
        """Chooses a replica and counts the call there, in one step of the loop: a replica that is not in the
        present table gets no new call, which whoever stops it relies on. `tried`: task ids that have failed
        this call, which get it no second time (GW-10). `routes`: those of the present table, where they are
        at hand. None = none can be had."""
        now, view = time.monotonic(), self._view
        view.circuits = circuits = self._circuits.get(key.tenant_id, _NONE)
        if routes is None:
            routes = self._routes(key.tenant_id, call.model)
        session = None
        for route in routes:
            if route.sticky:
                session = functools.partial(_session, call=call, key=key, pins=pins)
        choice = choose(routes, view, now, tried=tried, pins=pins, session=session)
        if choice is None:
            return None
        choice.tenant_id = key.tenant_id
        self._used[key.tenant_id, call.model] = now
        self.live.enter(choice.replica.task_id, choice.route.group_id)
        if circuits and (circuit := self._circuit(key.tenant_id, choice.replica)) is not None:
            choice.trial = circuit.wants_trial(now)
            if choice.trial:
                circuit.begin_trial()
        return choice

    async def find(self, call: Call, key: Key, pins: Pins = NO_PINS, tried: Collection[str] = ()) -> Choice:
        """`enter`; where there is none, waits while a replica that has just left to sleep may be called back:
        that this call waits is what calls it back. Raises CallError where none is to be had: 502 after a
        failure of this call, else 503 with a time to try again, 404 for a pin that leads nowhere."""
        choice = self.enter(call, key, pins, tried)
        if choice is not None:
            return choice
        live, config = self.live, self._config
        now = asyncio.get_running_loop().time
        until = now() + config.call_back_wait_s
        while True:
            routes = self._routes(key.tenant_id, call.model)
            live.asked.update(route.group_id for route in routes if route.group_id)
            if any(route.replicas for route in routes):
                raise self._why_none(routes, call, key, pins, tried)
            if tried:
                raise errors.upstream_unreachable()
            dozing = [route.group_id for route in routes if route.dozing]
            if not dozing or now() >= until:
                raise refuse_unready(routes, call.model, config.retry_after_s)
            live.hold(dozing)
            try:
                await self._tables.changed(until - now())
            finally:
                live.let_go(dozing)
            if (choice := self.enter(call, key, pins, tried)) is not None:
                return choice

    def succeeded(self, choice: Choice) -> None:
        """The replica has answered with anything but a failure of its own."""
        if self._circuits and (circuit := self._circuit(choice.tenant_id, choice.replica)) is not None:
            circuit.succeed(trial=choice.trial)
            choice.trial = False
            self._drop_idle(choice.tenant_id, choice.replica, circuit)

    def failed(self, choice: Choice, kind: Failure) -> None:
        """The replica failed this call; what the caller did wrong is never told here."""
        replica, tenant_id = choice.replica, choice.tenant_id
        choice.trial = False
        if self._is_of_before(replica):
            return
        times, _ = self._failures.get((tenant_id, replica.task_id), (0, ""))
        self._failures[tenant_id, replica.task_id] = (times + 1, kind.value)
        circuit = self._circuit(tenant_id, replica) or self._new_circuit(tenant_id, replica)
        circuit.fail(kind, time.monotonic())

    def leave(self, choice: Choice) -> None:
        """The call is over there, however it ended."""
        self.live.leave(choice.replica.task_id, choice.route.group_id)
        if choice.trial and (circuit := self._circuit(choice.tenant_id, choice.replica)) is not None:
            circuit.end_trial()

    # ---- what is learned beside the calls ----

    def note_heat(self, celsius: Mapping[str, int]) -> None:
        """The hottest card of each replica that has one above `heat_release_c`, by task id. One that has
        been hot stays so until it is named no more (GW-07)."""
        limit, before = self._config.heat_limit_c, self._heat
        self._heat = {
            task_id: degrees for task_id, degrees in celsius.items() if degrees >= limit or task_id in before
        }
        self._view.hot = self._heat

    def note_load(self, replica: Replica, load: EngineLoad) -> None:
        if not self._is_of_before(replica):
            self._loads[replica.task_id] = load

    def note_probe(self, replica: Replica, tenants: Iterable[str], *, reached: bool, well: bool) -> None:
        """What an active probe saw (GW-08), for the tenants (ids) that have called the replica's models."""
        if self._is_of_before(replica):
            return
        for tenant_id in tenants:
            circuit = self._circuit(tenant_id, replica)
            if circuit is None:
                if reached and well:
                    continue
                circuit = self._new_circuit(tenant_id, replica)
            circuit.probe(reached=reached, well=well)
            self._drop_idle(tenant_id, replica, circuit)

    def used_routes(self, within_s: float) -> list[tuple[str, Route]]:
        """Of the present table, those of models that a call went to lately, with the tenant's id."""
        table, since = self._tables.current, time.monotonic() - within_s
        if table is None:
            return []
        self._forget(table)
        self._used = {model: at for model, at in self._used.items() if at >= since}
        return [
            (tenant_id, route) for tenant_id, model in self._used for route in self._routes(tenant_id, model)
        ]

    def states(self) -> Counter[str]:
        """How many backends something stands against, by what; one that tenants judge differently counts as
        the worst of it."""
        now = time.monotonic()
        worst: dict[str, Verdict] = {}
        for circuits in self._circuits.values():
            for task_id, circuit in circuits.items():
                worst[task_id] = max(worst.get(task_id, Verdict.FREE), circuit.verdict(now))
        found = Counter(WORDS[verdict] for verdict in worst.values())
        if self._heat:
            found["hot"] = len(self._heat)
        return found

    def words(self) -> dict[str, BackendWord]:
        """What this process holds of backends, for those who look after them."""
        now, lag = time.monotonic(), time.time() - time.monotonic()
        met: dict[str, dict[str, TenantWord]] = {}
        verdicts: dict[str, Verdict] = dict.fromkeys({*self._heat, *self._loads}, Verdict.FREE)
        for tenant_id, task_id in {
            *((tenant, task) for tenant, circuits in self._circuits.items() for task in circuits),
            *self._failures,
        }:
            circuit = self._circuits.get(tenant_id, _NONE).get(task_id)
            verdict = Verdict.FREE if circuit is None else circuit.verdict(now)
            verdicts[task_id] = max(verdicts.get(task_id, Verdict.FREE), verdict)
            failures, last = self._failures.get((tenant_id, task_id), (0, ""))
            met.setdefault(task_id, {})[tenant_id] = TenantWord(WORDS[verdict], failures, last)
        said: dict[str, BackendWord] = {}
        for task_id, verdict in verdicts.items():
            of_tenants, load = met.get(task_id, {}), self._loads.get(task_id)
            said[task_id] = BackendWord(
                state=WORDS[verdict],
                failures=sum(word.failures for word in of_tenants.values()),
                last_failure=next((word.last_failure for word in of_tenants.values() if word.failures), ""),
                tenants=of_tenants,
                hot_c=self._heat.get(task_id),
                running=None if load is None else load.running,
                waiting=None if load is None else load.waiting,
                kv_use=None if load is None else load.kv_use,
                told_at=None if load is None else round(load.at + lag, 1),
            )
        return said

    # ---- inside ----

    def _routes(self, tenant_id: str, model: str) -> tuple[Route, ...]:
        """Those of the present table, whatever it was when the call was admitted."""
        table = self._tables.current
        of_tenant = {} if table is None else table.routes.get(tenant_id, {})
        return of_tenant.get(model, ())

    def _why_none(
        self, routes: tuple[Route, ...], call: Call, key: Key, pins: Pins, tried: Collection[str]
    ) -> errors.CallError:
        now, retry_after_s = time.monotonic(), self._config.retry_after_s
        self._view.circuits = self._circuits.get(key.tenant_id, _NONE)
        standings = {
            judge(route, replica, self._view, now, tried=tried, pins=pins)
            for route in routes
            for replica in route.replicas
        }
        if Standing.TRIED in standings:
            return errors.upstream_unreachable()
        if Standing.FULL in standings:
            return errors.backend_busy(call.model, retry_after_s)
        if Standing.OPEN in standings:
            return errors.backends_failing(call.model, retry_after_s)
        return errors.pinned_nothing(call.model)

    def _circuit(self, tenant_id: str, replica: Replica) -> Circuit | None:
        """Another attempt is another replica: what the one before did is not held against it."""
        circuit = self._circuits.get(tenant_id, _NONE).get(replica.task_id)
        return circuit if circuit is not None and circuit.attempt == replica.attempt else None

    def _new_circuit(self, tenant_id: str, replica: Replica) -> Circuit:
        circuit = Circuit(replica.attempt, self._config)
        self._circuits.setdefault(tenant_id, {})[replica.task_id] = circuit
        return circuit

    def _drop_idle(self, tenant_id: str, replica: Replica, circuit: Circuit) -> None:
        if circuit.is_idle():
            circuits = self._circuits[tenant_id]
            del circuits[replica.task_id]
            if not circuits:
                del self._circuits[tenant_id]

    def _is_of_before(self, replica: Replica) -> bool:
        """Whether a later attempt is known: what the one before did or said is over."""
        return replica.attempt < self._attempts.get(replica.task_id, 0)

    def _forget(self, table: Table) -> None:
        """Drops what is known of replicas, attempts and routes that have left the table."""
        if table is self._table:
            return
        self._table = table
        routes = [route for models in table.routes.values() for of in models.values() for route in of]
        here = {replica.task_id: replica.attempt for route in routes for replica in route.replicas}
        gone = {task_id for task_id, attempt in self._attempts.items() if here.get(task_id) != attempt}
        self._attempts = here
        for task_id in self._loads.keys() & gone:
            del self._loads[task_id]
        same = here.keys() - gone
        self._failures = {of: seen for of, seen in self._failures.items() if of[1] in same}
        kept = {
            tenant_id: {
                task_id: circuit
                for task_id, circuit in circuits.items()
                if here.get(task_id) == circuit.attempt
            }
            for tenant_id, circuits in self._circuits.items()
        }
        self._circuits = {tenant_id: circuits for tenant_id, circuits in kept.items() if circuits}
        turns = self.live.turns
        for route_id in turns.keys() - {route.route_id for route in routes}:
            del turns[route_id]


def _session(kind: str, call: Call, key: Key, pins: Pins) -> str:
    if kind == "header":
        return pins.session
    if kind == "key":
        return key.key_id
    raw = call.fields.get("user")
    return read_user(None if raw is None else bytes(raw))
