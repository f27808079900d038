"""Collects cyclic garbage in a thread of its own instead of wherever an allocation sets it off.

A dead cycle may hold a SQLite cursor, and dropping that waits while the cursor's connection is busy
in its own thread: up to the lock timeout. In the event loop's thread that would stand every stream
still. Owns when to collect; never what a finalizer does.
"""

import gc
import threading

LOOK_EVERY_S = 0.25


class Collector:
    """Python's own thresholds, looked at every `LOOK_EVERY_S` seconds once `start` was called."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="garbage", daemon=True)

    def start(self) -> None:
        """From here on no other thread collects. What exists now is taken to stay for good, so that
        a full collection, which holds up every thread, has little to look through."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._thread.start()

    def stop(self) -> None:
        """Back to Python's own way."""
        self._stopping.set()
        self._thread.join()
        gc.enable()
        gc.unfreeze()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            for generation in (2, 1, 0):
                if gc.get_count()[generation] > gc.get_threshold()[generation]:
                    gc.collect(generation)
                    break
