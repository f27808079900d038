"""What a server process holds does not grow with what it has served."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.stack import Stack

pytestmark = [pytest.mark.slow]

CALLS, AT_ONCE = 400, 8
MOST = 30  # ticks, flusher, gateway and the requests under way, with room


def connections_of(server: psutil.Process) -> int:
    """Open SQLite connections: each holds the write-ahead log open once."""
    held = 0
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            held += link.readlink().name.endswith("-wal")
        except FileNotFoundError:
            continue
    return held


@pytest.mark.req("RECOV-05")
def test_requests_leave_no_database_connection(running_server: Stack) -> None:
    server = running_server.server()
    assert server is not None
    api = running_server.api()
    seen = [connections_of(server)]

    def call(number: int) -> None:
        api.call("GET", "/api/v1/task-groups")
        if number % 10 == 0:
            seen.append(connections_of(server))

    with ThreadPoolExecutor(AT_ONCE) as callers:
        list(callers.map(call, range(CALLS)))
    assert min(seen) >= 1, "one stays, so that the write-ahead log is not written back at each pause"
    assert max(seen) <= MOST
