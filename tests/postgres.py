"""A PostgreSQL cluster for the time of one command: `python -m tests.postgres COMMAND...` runs it with
TEST_DATABASE_URL set. The cluster lies in a folder of its own and is gone afterwards.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from apps.ops.children import Child
from apps.ops.production import cluster
from apps.ops.production.packages import find_programs
from tests.stack import free_port

MAX_CONNECTIONS = 300  # races of a hundred threads, from two test processes
READY_S = 60.0
# It need not survive a crash of the machine.
CARELESS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


@contextmanager
def running_cluster() -> Iterator[str]:
    """The address of an empty database."""
    root = Path(tempfile.mkdtemp(prefix="heteroflow-postgres-"))
    root.chmod(0o711)  # PostgreSQL's account passes through
    programs, port = find_programs(os.environ).postgresql, free_port()
    password = cluster.ensure_cluster(programs, root / "cluster", root / "password")
    program = cluster.server_program(
        programs, root / "cluster", port, max_connections=MAX_CONNECTIONS, more=CARELESS
    )
    server = Child(program, os.getpid(), lambda line: print(line, file=sys.stderr))
    try:
        server.start(time.monotonic())
        address = f"postgres://{cluster.OWNER}:{password}@127.0.0.1:{port}/postgres"
        _wait(address)
        yield address
    finally:
        server.request_stop()
        server.wait_or_kill(threading.Event())
        shutil.rmtree(root, ignore_errors=True)


def _wait(address: str) -> None:
    give_up_at = time.monotonic() + READY_S
    while True:
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with running_cluster() as test_database:
        done = subprocess.run(
            sys.argv[1:], env={**os.environ, "TEST_DATABASE_URL": test_database}, check=False
        )
    sys.exit(done.returncode)
