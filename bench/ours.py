"""Our gateway with its own listener: `python -m bench.ours PORT FOLDER ENGINE_PORTS`.

The product's own GatewayApp, with its limits, journal and metrics; only the table comes from here instead of
the database: 10,001 keys, one model on all engines.
"""

import asyncio
import hashlib
import signal
import sys
from pathlib import Path

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.app import GatewayApp
from apps.gateway.plane.io.journal import Journal
from apps.gateway.plane.io.listener import Listener, bind
from apps.routing.table import Key, Replica, Route, Table

KEY = "sk-bench"
MODEL = "chat"
KEYS = 10_000


class Standing:
    """A table that never changes."""

    def __init__(self, ports: list[int]) -> None:
        key = Key(
            key_id="key-bench", prefix="sk-bench", tenant_id="ten-bench", tenant_slug="bench", member="bench"
        )
        secrets = [KEY, *(f"sk-{number}" for number in range(KEYS))]
        replicas = tuple(
            Replica(
                task_id=f"task-{port}",
                attempt=1,
                host="127.0.0.1",
                port=port,
                engine="vllm",
                served_model_name="mock-upstream",
            )
            for port in ports
        )
        route = Route(
            route_id="mr-bench",
            group_id="tg-bench",
            priority=0,
            weight=100,
            version="v1",
            balancing="least_connections",
            replicas=replicas,
        )
        self._table = Table(
            version=1,
            keys={hashlib.sha256(secret.encode()).hexdigest(): key for secret in secrets},
            routes={"ten-bench": {MODEL: (route,)}},
        )

    async def load(self) -> Table:
        return self._table

    async def version(self) -> int:
        return self._table.version

    async def find_key(self, digest: str) -> Key | None:
        return None


async def serve(port: int, config: GatewayConfig, engine_ports: list[int]) -> None:
    """Until SIGTERM."""
    source = Standing(engine_ports)
    journal = Journal(
        Path(config.usage_dir), max_file_bytes=config.usage_file_bytes, backlog=config.usage_backlog
    )
    app = GatewayApp(config, source=source, find_key=source.find_key, journal=journal)
    listener = Listener(app, config)
    await app.startup()
    await listener.start(bind("127.0.0.1", port))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    listener.drain()
    await app.shutdown()
    listener.stop()


if __name__ == "__main__":
    import uvloop

    given = GatewayConfig(usage_dir=sys.argv[2])
    uvloop.run(serve(int(sys.argv[1]), given, [int(word) for word in sys.argv[3].split(",")]))
