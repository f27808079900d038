"""The gateway as an ASGI app: paths, keys, bodies, and callers that go away.

Serves the closed list of inference paths and the model list; everything else under it is a 404 in
OpenAI's shape. Owns no rule of its own: those are in plane/core, a call's course in exchange.py.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from apps.core.request_id import carry_on
from apps.core.request_id import request_id as present_id
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.address import find_address, require_address
from apps.gateway.plane.core.admission import (
    find_routes,
    hash_bearer,
    list_models,
    read_pins,
    require_active,
    require_live,
    require_scope,
)
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import INFERENCE_PATHS
from apps.gateway.plane.core.usage import CallFacts
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.bodies import BodyReader, CallerGone
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.exchange import CLIENT_GONE_STATUS, Exchange, Parts
from apps.gateway.plane.io.journal import Journal
from apps.gateway.plane.io.keys import KeyDirectory, KeyFinder
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.reply import AsgiReply, Receive, Reply, Send
from apps.gateway.plane.io.settlement import Settlement
from apps.gateway.plane.io.tables import Tables, TableSource
from apps.gateway.plane.io.telling import Listener, Teller
from apps.gateway.plane.io.upstream import Upstream
from apps.gateway.plane.io.watch import Watch
from apps.routing.table import INFERENCE, MODELS, Key, Table
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
Scope = dict[str, Any]
TouchKeys = Callable[[dict[str, float]], Awaitable[None]]


class BackgroundThread(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class GatewayApp:
    """`startup` before the first call, `shutdown` after the last. One per process and loop.

    `touch_keys` gets {key id: epoch seconds of the last use} now and then (TEN-06); `listener` is told what
    is in flight here (SLEEP-06); `flusher` is started and stopped with the app.
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
        flusher: BackgroundThread | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._tables = Tables(source, config)
        self._keys = KeyDirectory(self._tables, find_key, config)
        self._journal = journal
        self._touch_keys = touch_keys
        self._flusher = flusher
        self._clock = clock
        self._live = LiveCounts(config.sideline_s)
        spreads = rng or random.Random()  # noqa: S311 - guards nothing
        self._parts = Parts(
            config=config,
            upstream=Upstream(config),
            choosing=Choosing(self._tables, self._live, spreads, config),
            journal=journal,
            big_bodies=asyncio.Semaphore(config.big_bodies_at_once),
            watch=Watch(config.deadline_step_s),
        )
        self._teller = Teller(listener, self._tables, self._live, config, clock) if listener else None
        self._telling: asyncio.Task[None] | None = None
        self._bodies = BodyReader(config, self._parts.big_bodies)
        self._exchanges: dict[asyncio.Task[None], Exchange] = {}
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
        self._tending = asyncio.create_task(self._tend(), name="gateway-tending")
        if self._teller is not None:
            self._telling = asyncio.create_task(self._teller.run(), name="gateway-telling")

    def drain(self) -> None:
        """Refuses new calls from now on and lets running ones go on; `drained` says when none is left."""
        self._stopping = True

    def drained(self) -> bool:
        return self._stopping and not self._exchanges

    async def shutdown(self) -> None:
        """Refuses new calls, lets running ones end for `shutdown_timeout_s`, then ends them."""
        self.drain()
        if self._exchanges:
            await asyncio.wait(set(self._exchanges), timeout=self._config.shutdown_timeout_s)
        for task, exchange in list(self._exchanges.items()):
            exchange.stopping = True
            task.cancel()
        if self._exchanges:
            await asyncio.wait(set(self._exchanges), timeout=self._config.connect_timeout_s)
        for background in (self._tending, self._telling):
            if background is not None:
                background.cancel()
                await asyncio.wait({background})
        await self._tables.stop()
        await self._parts.upstream.stop()
        if self._teller is not None:
            await self._teller.leave()
        await self._touch()
        self._journal.retry()
        self._journal.close()
        if self._flusher is not None:
            await asyncio.to_thread(self._flusher.stop)

    def in_flight(self) -> dict[str, int]:
        """Calls that run now, by task id; replicas without one are absent."""
        return dict(self._live.in_flight)

    def ready(self) -> bool:
        """Whether calls can be served: a table was read and the app isn't stopping."""
        return self._tables.current is not None and not self._stopping

    async def _tend(self) -> None:
        touched = time.monotonic()
        while True:
            await asyncio.sleep(self._config.usage_retry_s)
            self._measure()
            if self._journal.waiting:
                self._journal.retry()
            if time.monotonic() - touched >= self._config.touch_interval_s:
                touched = time.monotonic()
                await self._touch()

    def _measure(self) -> None:
        table = self._tables.current
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the gateway serves http only, not {scope['type']}")
        headers = {name: value for name, value in scope["headers"]}
        # Carried on to the engine, and by this variable into every log line of the call.
        request_id = carry_on(headers.get(b"x-request-id", b"").decode("latin-1"))
        present_id.set(request_id)
        reply = AsgiReply(send, request_id)
        try:
            await self._dispatch(scope, headers, receive, reply, request_id)
        except errors.CallError as fault:
            await _handed(reply.error(fault))
        except CallerGone:
            return
        except Exception:
            log.exception("request %s failed inside the gateway", request_id)
            if not reply.started:
                await _handed(reply.error(errors.internal()))

    async def _dispatch(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, reply: Reply, request_id: str
    ) -> None:
        path, method = scope["path"], scope["method"]
        if path in INFERENCE_PATHS:
            if method != "POST":
                raise errors.wrong_method(method, path, "POST")
            await self._infer(scope, headers, receive, reply, request_id)
        elif path == "/v1/models" or (path.startswith("/v1/models/") and len(path) > len("/v1/models/")):
            if method != "GET":
                raise errors.wrong_method(method, path, "GET")
            await self._models(scope, headers, reply)
        else:
            raise errors.unknown_path(path)

    async def _admit(self, headers: dict[bytes, bytes]) -> Key:
        try:
            found = await self._keys.find(hash_bearer(headers.get(b"authorization")))
            key = require_live(found, now=self._clock())
        except errors.CallError as fault:
            meters.count_turned_away(fault.status)
            raise
        self._used_keys[key.key_id] = self._clock()
        return key

    def _table(self) -> Table:
        if self._tables.current is None:
            raise errors.tables_unavailable(self._config.retry_after_s)
        return self._tables.current

    def _permit(self, key: Key, may: str, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raises CallError 403 with the rule that forbids this key this call."""
        require_active(key)
        require_scope(key, may)
        if key.allowed_networks is not None:
            peer = scope["client"][0] if scope.get("client") else ""
            forwarded = headers.get(b"x-forwarded-for", b"")
            require_address(key, find_address(peer, forwarded, self._config.trusted_proxies))

    async def _models(self, scope: Scope, headers: dict[bytes, bytes], reply: Reply) -> None:
        key = await self._admit(headers)
        self._permit(key, MODELS, scope, headers)
        names = list_models(self._table(), key)
        wanted = scope["path"].removeprefix("/v1/models").removeprefix("/")
        if wanted:
            if wanted not in names:
                raise errors.model_not_found(wanted)
            await _handed(reply.whole(200, msgspec.json.encode(self._model(wanted))))
        else:
            listed = {"object": "list", "data": [self._model(name) for name in names]}
            await _handed(reply.whole(200, msgspec.json.encode(listed)))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self._started_at), "owned_by": "heteroflow"}

    async def _infer(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, reply: Reply, request_id: str
    ) -> None:
        """From here on every ending leaves exactly one record (GW-12)."""
        path = scope["path"]
        facts = CallFacts(request_id, self._clock(), path)
        settlement = Settlement(self._journal, facts)
        key = await self._admit(headers)
        facts.tenant_id, facts.tenant_slug, facts.member = key.tenant_id, key.tenant_slug, key.member
        facts.key_id, facts.key_prefix = key.key_id, key.prefix
        try:
            self._permit(key, INFERENCE, scope, headers)
            if self._stopping:
                raise errors.stopping(self._config.retry_after_s)
            call = await self._bodies.read_call(path, headers, receive)
            facts.model, facts.stream = call.model, call.stream
            find_routes(self._table(), key, call.model)
            pins = read_pins(headers, key)
        except errors.CallError as fault:
            settlement.settle(Ending.REFUSED, fault.status)
            raise
        except (CallerGone, asyncio.CancelledError):
            settlement.settle(Ending.CLIENT_GONE, CLIENT_GONE_STATUS)
            raise
        except Exception:
            settlement.settle(Ending.REFUSED, errors.internal().status)
            raise
        exchange = Exchange(self._parts, key, call, pins, settlement, reply)
        await self._run(exchange, receive, reply)

    async def _run(self, exchange: Exchange, receive: Receive, reply: Reply) -> None:
        """Runs a call and cancels it at once when its caller goes away (GW-09)."""
        work = asyncio.create_task(exchange.run())
        gone = asyncio.create_task(_until_gone(receive))
        self._exchanges[work] = exchange
        work.add_done_callback(lambda task: self._exchanges.pop(task, None))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            # After the last byte the server says "disconnect" too; the tail may still be read then.
            if not work.done() and not reply.ended:
                work.cancel()
            await asyncio.wait({work})
        except asyncio.CancelledError:
            exchange.stopping = True
            work.cancel()
            await asyncio.wait({work}, timeout=self._config.connect_timeout_s)
            raise
        finally:
            gone.cancel()
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _handed(owed: Awaitable[None] | None) -> None:
    if owed is not None:
        await owed
