"""Ports for processes that this machine starts for itself."""

import random
import socket
from contextlib import ExitStack, suppress

# Below the ports that the kernel gives to outgoing connections, one of which could hold a port in the
# moment when its owner is started again; and below those that agents give to engines.
LOW, HIGH = 10_000, 19_999


def free_ports(number: int) -> tuple[int, ...]:
    """Different ports of 127.0.0.1 that nobody listens on now."""
    found: list[int] = []
    with ExitStack() as held:  # until all are found, so that none is found twice
        for port in random.sample(range(LOW, HIGH + 1), HIGH + 1 - LOW):
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == number:
                return tuple(found)
    raise OSError(f"of the ports {LOW}-{HIGH} of 127.0.0.1 no {number} are free")
