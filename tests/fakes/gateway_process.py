"""A gateway as a process of its own, to be killed or ended.

`python -m tests.fakes.gateway_process PORT FOLDER [SETTINGS]`: PORT is the mock engine's, SETTINGS are
fields of GatewayConfig as JSON. Prints the gateway's port on the first line. SIGTERM ends it as it ends a
server: calls that run end first. Needs no Django.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.fakes.gateway import FakeSource, RunningGateway, make_replica, make_route, make_table


async def serve(engine_port: int, folder: Path, settings: dict[str, Any]) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine_port))))
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with RunningGateway(source, folder, **settings) as gateway:
        print(gateway.port, flush=True)
        await told.wait()
        gateway.listener.drain()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), json.loads("".join(sys.argv[3:]) or "{}")))
