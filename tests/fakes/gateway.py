"""The gateway on a free port, by its own listener or under uvicorn, with tables of the test, no database."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.app import GatewayApp
from apps.gateway.plane.io.connection import Unreachable
from apps.gateway.plane.io.journal import Journal
from apps.gateway.plane.io.listener import Listener, bind
from apps.routing.load import Load
from apps.routing.table import Key, Replica, Route, Table
from apps.usage.record import UsageEntry
from tests.fakes.mock_engine import MockEngine

SECRET = "sk-11111111-2222-3333-4444-555555555555"
TENANT = "ten-aaaaaaaaaaaaaaaa"
MODEL = "caller-name"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}]}


def sha(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def make_key(**changes: Any) -> Key:
    values = {
        "key_id": "key-aaaaaaaaaaaaaaaa",
        "prefix": SECRET[:10],
        "tenant_id": TENANT,
        "tenant_slug": "acme",
        "member": "mia",
    }
    return Key(**{**values, **changes})


def make_replica(engine: MockEngine | int, task_id: str = "task-a", **changes: Any) -> Replica:
    port = engine if isinstance(engine, int) else engine.port
    values = {
        "task_id": task_id,
        "attempt": 1,
        "host": "127.0.0.1",
        "port": port,
        "engine": "vllm",
        "served_model_name": "engine-name",
    }
    return Replica(**{**values, **changes})


def make_route(*replicas: Replica, **changes: Any) -> Route:
    values = {
        "route_id": "mr-a",
        "group_id": "tg-a",
        "priority": 0,
        "weight": 100,
        "version": "v1",
        "balancing": "least_connections",
        "replicas": replicas,
    }
    return Route(**{**values, **changes})


def make_table(*routes: Route, keys: dict[str, Key] | None = None, version: int = 1) -> Table:
    known = keys if keys is not None else {SECRET: make_key()}
    return Table(
        version=version,
        keys={sha(secret): key for secret, key in known.items()},
        routes={TENANT: {MODEL: routes}},
    )


@dataclass
class FakeSource:
    """A TableSource, KeyFinder and Listener that the test changes and breaks. `said`: all it was told."""

    table: Table
    late_keys: dict[str, Key] = field(default_factory=dict)
    broken: bool = False
    loads: int = 0
    lookups: int = 0
    at_once: int = 0
    most_at_once: int = 0
    lookup_s: float = 0.0
    said: list[Load] = field(default_factory=list)
    left: bool = False
    degrees: dict[str, int] = field(default_factory=dict)

    async def say(self, load: Load, *, left: bool = False) -> None:
        self._check()
        self.said.append(load)
        self.left = left

    async def load(self) -> Table:
        self._check()
        self.loads += 1
        return self.table

    async def version(self) -> int:
        self._check()
        return self.table.version

    async def heat(self, at_least_c: int) -> dict[str, int]:
        self._check()
        return {task_id: degrees for task_id, degrees in self.degrees.items() if degrees >= at_least_c}

    async def find_key(self, digest: str) -> Key | None:
        self.lookups += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.lookup_s:
                await asyncio.sleep(self.lookup_s)
            self._check()
            return {sha(secret): key for secret, key in self.late_keys.items()}.get(digest)
        finally:
            self.at_once -= 1

    def _check(self) -> None:
        if self.broken:
            raise ConnectionError("the database is away")


class ServerInside(uvicorn.Server):
    """Runs in a test's own loop, and leaves its signals alone."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


class RunningGateway:
    """One started gateway; `records()` reads what it has written so far. `shell`: "bare", "asgi", or "warm":
    "bare" with connections to all replicas before the first call."""

    shell = "bare"

    def __init__(self, source: FakeSource, folder: Path, **settings: Any) -> None:
        self.config = GatewayConfig(usage_dir=str(folder), **settings)
        self.folder = folder
        self.source = source
        self.journal = Journal(folder, max_file_bytes=self.config.usage_file_bytes, backlog=10)
        self.touched: dict[str, float] = {}
        self.app = GatewayApp(
            self.config,
            source=source,
            find_key=source.find_key,
            journal=self.journal,
            touch_keys=self._touch,
            listener=source,
            heat=source.heat,
        )
        self.port = 0

    async def _touch(self, used: dict[str, float]) -> None:
        self.touched.update(used)

    async def __aenter__(self) -> "RunningGateway":
        await self.app.startup()
        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        await (self._serve_asgi(sock) if self.shell == "asgi" else self._listen(sock))
        if self.shell == "warm":
            await self._connect()
        return self

    async def _connect(self) -> None:
        upstream, table = self.app._parts.upstream, self.app._tables.current
        for models in () if table is None else table.routes.values():
            for replica in (one for routes in models.values() for route in routes for one in route.replicas):
                with contextlib.suppress(Unreachable):
                    upstream._pool(replica).park(await upstream.connect(replica))

    async def _listen(self, sock: socket.socket) -> None:
        self.listener = Listener(self.app, self.config)
        await self.listener.start(sock)

    async def _serve_asgi(self, sock: socket.socket) -> None:
        options = uvicorn.Config(
            self.app,
            lifespan="off",
            log_level="error",
            access_log=False,
            backlog=1024,
            proxy_headers=False,  # as the server has it where no proxy is trusted
        )
        self._server = ServerInside(options)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        await until(lambda: self._server.started)

    async def __aexit__(self, *_: object) -> None:
        await self.app.shutdown()
        if self.shell != "asgi":
            self.listener.stop()
            return
        self._server.should_exit = True
        self._server.force_exit = True
        await self._serving

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def records(self) -> list[UsageEntry]:
        return read_records(self.folder)


def read_records(folder: Path) -> list[UsageEntry]:
    """What gateways have written there so far."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [msgspec.json.decode(line, type=UsageEntry) for line in lines]


async def until(condition: Callable[[], Any]) -> None:
    """Waits for a condition. Raises TimeoutError after a minute, which is for the busiest machine."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def events_of(body: bytes) -> list[Any]:
    """The data of each event of a stream, decoded; [DONE] as the text it is."""
    found = [part.removeprefix("data: ") for part in body.decode().split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in found]
