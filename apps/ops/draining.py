"""Ends the calls that run before the engines that answer them end.

Used by `manage.py up` and `run_production`, whose agents stop their engines. Never ends a process.
"""

import signal
import threading
import time
from collections.abc import Sequence

from apps.ops.children import Child
from apps.ops.rest import Api

LOOK_S = 0.1


def drain_gateways(gateways: Sequence[tuple[Child, Api]], limit_s: float, hurry: threading.Event) -> None:
    """Have each refuse new calls, and wait until none has a running one: at most `limit_s`, and no longer
    once there is a hurry. One that does not serve calls is left alone."""
    waiting = [(child, api) for child, api in gateways if api.answers("/readyz/gateway")]
    for child, _ in waiting:
        child.send(signal.SIGUSR1)
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        waiting = [
            (child, api) for child, api in waiting if child.runs() and not api.answers("/readyz/drained")
        ]
        if not waiting or hurry.wait(LOOK_S):
            return
