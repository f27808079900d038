"""The gateway behind its shells (asgi.py, listener.py): its life, and which way a request goes.

Serves the closed list of inference paths and the model list; everything else under it is a 404 in
OpenAI's shape. Owns no rule of its own: those are in plane/core, a call's course in straight.py and
exchange.py.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from apps.core.request_id import carry_on
from apps.core.request_id import request_id as present_id
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.address import find_address, require_address
from apps.gateway.plane.core.admission import (
    find_refusal,
    find_routes,
    has_expired,
    hash_bearer,
    list_models,
    read_pins,
    require_live,
)
from apps.gateway.plane.core.choice import NO_PINS
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import INFERENCE_PATHS, carry_trace, parse_call
from apps.gateway.plane.core.usage import CallFacts
from apps.gateway.plane.io import asgi, meters
from apps.gateway.plane.io.asked import Asked, CallerGone
from apps.gateway.plane.io.bodies import BodyReader
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.course import CLIENT_GONE_STATUS, Parts
from apps.gateway.plane.io.exchange import Exchange
from apps.gateway.plane.io.journal import Journal
from apps.gateway.plane.io.keys import KeyDirectory, KeyFinder
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.probes import Heat, Probes
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.room import Room
from apps.gateway.plane.io.settlement import Settlement
from apps.gateway.plane.io.straight import Carrier, Head, Straight
from apps.gateway.plane.io.tables import Tables, TableSource
from apps.gateway.plane.io.telling import Listener, Teller
from apps.gateway.plane.io.upstream import Upstream
from apps.gateway.plane.io.watch import Watch
from apps.routing.table import INFERENCE, MODELS, Key, Table
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
TouchKeys = Callable[[dict[str, float]], Awaitable[None]]


class BackgroundThread(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class GatewayApp:
    """`startup` before the first call, `shutdown` after the last. One per process and loop.

    `touch_keys` gets {key id: epoch seconds of the last use} now and then (TEN-06); `listener` is told what
    is in flight here (SLEEP-06); `heat` tells hot cards (GW-07); `flusher` is started and stopped with the
    app.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        source: TableSource,
        find_key: KeyFinder,
        journal: Journal,
        touch_keys: TouchKeys | None = None,
        listener: Listener | None = None,
        heat: Heat | None = None,
        flusher: BackgroundThread | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._tables = Tables(source, config)
        self._keys = KeyDirectory(self._tables, find_key, config)
        self._journal = journal
        self._touch_keys = touch_keys
        self._flusher = flusher
        self._clock = clock
        self._live = LiveCounts()
        spreads = rng or random.Random()  # noqa: S311 - guards nothing
        self._parts = Parts(
            config=config,
            upstream=Upstream(config),
            choosing=Choosing(self._tables, self._live, spreads, config),
            big_bodies=asyncio.Semaphore(config.big_bodies_at_once),
            watch=Watch(config.deadline_step_s),
        )
        choosing = self._parts.choosing
        self._probes = Probes(choosing, self._parts.upstream, config, heat=heat)
        self._teller = Teller(listener, self._tables, choosing, config, clock) if listener else None
        self._telling: asyncio.Task[None] | None = None
        self._bodies = BodyReader(config, self._parts.big_bodies)
        self._room = Room(config)
        self._used_keys: dict[str, float] = {}
        self._tending: asyncio.Task[None] | None = None
        self._stopping = False
        self._told_lost = 0
        self._started_at = clock()

    # ---- life ----

    async def startup(self) -> None:
        """Raises OSError when the usage folder can't be written: unrecorded calls are not served."""
        self._journal.open()
        await self._parts.upstream.start()
        await self._tables.start()
        if self._flusher is not None:
            self._flusher.start()
        self._probes.start()
        self._tending = asyncio.create_task(self._tend(), name="gateway-tending")
        if self._teller is not None:
            self._telling = asyncio.create_task(self._teller.run(), name="gateway-telling")

    def drain(self) -> None:
        """Refuses new calls from now on and lets running ones go on; `drained` says when none is left."""
        self._stopping = True

    def drained(self) -> bool:
        return self._stopping and not self._running()

    async def shutdown(self) -> None:
        """Refuses new calls, lets running ones end for `shutdown_timeout_s`, then ends them."""
        self.drain()
        for call in self._running():
            if isinstance(call, Straight):
                call.take_task()
        await asyncio.sleep(0)  # each has begun to wait then
        await self._wait(self.config.shutdown_timeout_s)
        for call in self._running():
            call.stop()
        await self._wait(self.config.connect_timeout_s)
        for background in (self._tending, self._telling):
            if background is not None:
                background.cancel()
                await asyncio.wait({background})
        await self._probes.stop()
        await self._tables.stop()
        await self._parts.upstream.stop()
        if self._teller is not None:
            await self._teller.leave()
        await self._touch()
        self._measure()
        self._journal.flush()
        self._journal.close()
        if self._flusher is not None:
            await asyncio.to_thread(self._flusher.stop)

    def _running(self) -> list[Exchange]:
        return [one for one in self._parts.watch.watched() if isinstance(one, Exchange)]

    async def _wait(self, within_s: float) -> None:
        """For the running calls to end, at most so long."""
        tasks = {call.task for call in self._running() if call.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def in_flight(self) -> dict[str, int]:
        """Calls that run now, by task id; replicas without one are absent."""
        return dict(self._live.in_flight)

    def ready(self) -> bool:
        """Whether calls can be served: a table was read and the app isn't stopping."""
        return self._tables.current is not None and not self._stopping

    async def _tend(self) -> None:
        touched = time.monotonic()
        while True:
            await asyncio.sleep(self.config.usage_retry_s)
            self._measure()
            if self._journal.waiting:
                self._journal.flush()
            if time.monotonic() - touched >= self.config.touch_interval_s:
                touched = time.monotonic()
                await self._touch()

    def _measure(self) -> None:
        meters.flush()
        models = [call.model_in_use for call in self._running()]
        meters.note_in_flight(Counter(model for model in models if model is not None))
        table = self._tables.current
        meters.note_backends(self._parts.choosing.states())
        meters.note_table(None if table is None else table.version, self._tables.age_s())
        meters.note_journal(self._journal.waiting, self._journal.lost - self._told_lost)
        self._told_lost = self._journal.lost

    async def _touch(self) -> None:
        if self._touch_keys is None or not self._used_keys:
            return
        used, self._used_keys = self._used_keys, {}
        try:
            await self._touch_keys(used)
        except Exception as error:
            log.warning("last-used times of %d keys can't be stored: %s", len(used), type(error).__name__)
            self._used_keys = {**used, **self._used_keys}

    # ---- one request ----

    def begin(self, head: Head, body: bytes, reply: Reply, carrier: Carrier) -> Straight | None:
        """Begins an ordinary call without a task. None where anything about it is out of the ordinary: then
        nothing has happened, and `answer` says what there is to say."""
        table, now = self._tables.current, self._clock()
        key = None if table is None else table.keys.get(head.digest)
        if table is None or key is None or self._stopping or len(body) >= self._bodies.ordinary:
            return None
        if key.allowed_networks is not None or has_expired(key, now):
            return None
        if find_refusal(key, INFERENCE) is not None:
            return None
        try:
            call = parse_call(head.path, body)
            routes = find_routes(table, key, call.model)
        except errors.CallError:
            return None
        choice = self._parts.choosing.enter(call, key, routes=routes)
        if choice is None:
            return None
        self._used_keys[key.key_id] = now
        reply.request_id = carry_on(head.offered)
        facts = CallFacts(
            reply.request_id,
            now,
            call.path,
            key.tenant_id,
            key.tenant_slug,
            key.member,
            key.key_id,
            key.prefix,
            call.model,
            stream=call.stream,
        )
        settlement = Settlement(self._journal, facts)
        straight = Straight(
            self._parts, key, call, NO_PINS, settlement, facts, reply, carried=head.carried, carrier=carrier
        )
        straight.begin(choice)
        return straight

    def write_records(self) -> None:
        """Those of calls whose last bytes are about to go out."""
        self._journal.flush()

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """As an ASGI app."""
        await asgi.serve(self, scope, receive, send, patience_s=self.config.connect_timeout_s)

    async def answer(self, asked: Asked, reply: Reply) -> None:
        """Answers one request, in a task of its own that is cancelled when the caller has gone (GW-09)."""
        # Carried on to the engine, and by this variable into every log line of the call.
        reply.request_id = carry_on(asked.headers.get(b"x-request-id", b"").decode("latin-1"))
        present_id.set(reply.request_id)
        try:
            if asked.path in INFERENCE_PATHS:
                if asked.method != "POST":
                    raise errors.wrong_method(asked.method, asked.path, "POST")
                await self._infer(asked, reply)
            else:
                await self._inform(asked, reply)
        except errors.CallError as fault:
            await _handed(reply.error(fault))
        except CallerGone:
            return
        except Exception:
            log.exception("request %s failed inside the gateway", reply.request_id)
            if not reply.started:
                await _handed(reply.error(errors.internal()))

    def end(self, work: "asyncio.Task[Any]") -> None:
        """Ends a call because this process stops; its caller is told so."""
        for call in self._running():
            if call.task is work:
                call.stopping = True
        work.cancel()

    async def _inform(self, asked: Asked, reply: Reply) -> None:
        path, method = asked.path, asked.method
        if path == "/v1/models" or (path.startswith("/v1/models/") and len(path) > len("/v1/models/")):
            if method != "GET":
                raise errors.wrong_method(method, path, "GET")
            await self._models(asked, reply)
        else:
            raise errors.unknown_path(path)

    async def _admit(self, asked: Asked) -> Key:
        """The live key that the request brings. Raises CallError 401, or 503 where it can't be looked up."""
        try:
            found = await self._keys.find(hash_bearer(asked.headers.get(b"authorization")))
            key = require_live(found, now=self._clock())
        except errors.CallError as fault:
            meters.count_turned_away(fault.status)
            raise
        self._used_keys[key.key_id] = self._clock()
        return key

    def _table(self) -> Table:
        if self._tables.current is None:
            raise errors.tables_unavailable(self.config.retry_after_s)
        return self._tables.current

    def _permit(self, key: Key, may: str, asked: Asked) -> None:
        """Raises CallError 403 with the rule that forbids this key this call."""
        if (refusal := find_refusal(key, may)) is not None:
            raise refusal
        if key.allowed_networks is not None:
            forwarded = asked.headers.get(b"x-forwarded-for", b"")
            require_address(key, find_address(asked.peer, forwarded, self.config.trusted_proxies))

    async def _models(self, asked: Asked, reply: Reply) -> None:
        key = await self._admit(asked)
        self._permit(key, MODELS, asked)
        names = list_models(self._table(), key)
        wanted = asked.path.removeprefix("/v1/models").removeprefix("/")
        if wanted:
            if wanted not in names:
                raise errors.model_not_found(wanted)
            await _handed(reply.whole(200, msgspec.json.encode(self._model(wanted))))
        else:
            listed = {"object": "list", "data": [self._model(name) for name in names]}
            await _handed(reply.whole(200, msgspec.json.encode(listed)))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self._started_at), "owned_by": "heteroflow"}

    async def _infer(self, asked: Asked, reply: Reply) -> None:
        """From here on every ending leaves exactly one record (GW-12)."""
        facts = CallFacts(reply.request_id, self._clock(), asked.path)
        settlement = Settlement(self._journal, facts)
        key = await self._admit(asked)
        facts.tenant_id, facts.tenant_slug, facts.member = key.tenant_id, key.tenant_slug, key.member
        facts.key_id, facts.key_prefix = key.key_id, key.prefix
        with self._room.of(key.tenant_id) as kept:
            try:
                self._permit(key, INFERENCE, asked)
                if self._stopping:
                    raise errors.stopping(self.config.retry_after_s)
                call = self._bodies.ready_call(asked) or await self._bodies.read_call(asked, kept)
                facts.model, facts.stream = call.model, call.stream
                find_routes(self._table(), key, call.model)
                pins = read_pins(asked.headers, key)
            except errors.CallError as fault:
                settlement.settle(Ending.REFUSED, fault.status)
                raise
            except (CallerGone, asyncio.CancelledError):
                settlement.settle(Ending.CLIENT_GONE, CLIENT_GONE_STATUS)
                raise
            except Exception:
                settlement.settle(Ending.REFUSED, errors.internal().status)
                raise
            carried = carry_trace(asked.headers)
            parts = (self._parts, key, call, pins, settlement, facts, reply)
            await Exchange(*parts, carried=carried, kept=kept).run()


async def _handed(owed: Awaitable[None] | None) -> None:
    if owed is not None:
        await owed
