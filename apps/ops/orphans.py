"""Ends a worker process whose parent was killed: granian's workers would go on holding its port.

Only for processes that were started by multiprocessing; in all others it does nothing.
"""

import multiprocessing
import os
import threading
from multiprocessing import connection


def end_with_parent() -> None:
    """From here on this process ends as soon as the one that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: whatever it would still do, nobody supervises

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
