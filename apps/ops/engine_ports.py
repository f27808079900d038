"""Which host ports the local agent may give to engines: a range that no other start here holds.

A range is held by binding its last port for as long as the supervisor lives; the kernel frees it with
us, however we end. Never listens.
"""

import socket

from apps.ops.preflight import NotReady

# Below 32768, where Linux begins to hand out ports for outgoing connections.
FIRST, PORTS_A_START, STARTS = 20000, 400, 30


def hold_range(web_port: int) -> tuple[socket.socket, tuple[int, int]]:
    """The guard to keep open, and the first and last port for engines. By preference the range that
    belongs to the web port, so that a next start mostly has the same. Raises NotReady."""
    for step in range(STARTS):
        first = FIRST + PORTS_A_START * ((web_port + step) % STARTS)
        guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            guard.bind(("127.0.0.1", first + PORTS_A_START - 1))
        except OSError:  # another start's, or something else's: the next one
            guard.close()
            continue
        return guard, (first, first + PORTS_A_START - 2)
    last = FIRST + PORTS_A_START * STARTS - 1
    raise NotReady(
        f"No range of ports between {FIRST} and {last} is free for engines; end another start first."
    )
