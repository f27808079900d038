"""A gateway as a process of its own, to be killed: `python -m tests.fakes.gateway_process PORT FOLDER`.

PORT is the mock engine's. Prints the gateway's port on the first line. Needs no Django.
"""

import asyncio
import sys
from pathlib import Path

from tests.fakes.gateway import FakeSource, RunningGateway, make_replica, make_route, make_table


async def serve(engine_port: int, folder: Path) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine_port))))
    async with RunningGateway(source, folder) as gateway:
        print(gateway.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
