"""A gateway as a process of its own, to be killed or ended: `gateway_process` starts it and knows it.

`python -m tests.fakes.gateway_process PORT FOLDER SETTINGS`: PORT is the engine's, SETTINGS are fields of
GatewayConfig as JSON. Prints the gateway's port on the first line. SIGTERM ends it as it ends a server: calls
that run end first. Needs no Django.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.gateway import FakeSource, RunningGateway, make_replica, make_route, make_table

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class GatewayProcess:
    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def gateway_process(engine_port: int, folder: Path, **settings: Any) -> AsyncIterator[GatewayProcess]:
    """Before an engine at a port here; killed at the end of the block, unless it has ended by then."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(engine_port), str(folder), json.dumps(settings)),
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield GatewayProcess(process, int(await asyncio.wait_for(process.stdout.readline(), 60)))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def serve(engine_port: int, folder: Path, settings: dict[str, Any]) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine_port))))
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with RunningGateway(source, folder, **settings) as gateway:
        print(gateway.port, flush=True)
        await told.wait()
        gateway.listener.drain()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])))
