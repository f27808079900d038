"""The embedded profile's one server process: web on the main thread, Celery worker and beat beside it.

Broker and channel layer are in this process's memory: one process, one interpreter lock, no second
instance. Queued hints die with it, which is right: rows are the truth and every tick reads them anew.
"""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from celery import Celery
from celery.beat import Scheduler, Service

from apps.ops.collector import Collector

log = logging.getLogger("heteroflow.ops")

QUEUES = ("ticks", "work", "scheduling")
KEEP_ALIVE_S = 75
SWITCH_INTERVAL_S = 0.0005  # a busy tick thread must not hold up streams for Python's usual 5 ms


class QuietServer(uvicorn.Server):
    """uvicorn that leaves the signals to us: its own way raises them again once it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EmbeddedServer:
    """Web server, worker and beat. `broken` is set when a thread ended that must not."""

    def __init__(
        self,
        celery: Celery,
        application: Any,
        host: str,
        port: int,
        *,
        drain_s: float,
        ticks_at_once: int,
        trusted_proxies: list[str],
    ) -> None:
        self.celery = celery
        self.broken = False
        self.web = QuietServer(
            uvicorn.Config(
                application,
                host=host,
                port=port,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                # Nobody else may say whom a request is from: guessing is counted by address.
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=trusted_proxies,
                ws_ping_interval=20,
                # Longer than an agent's heartbeat, else its connection closes as the next one goes out.
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(drain_s),
            )
        )
        self.worker = celery.WorkController(
            pool="threads",
            concurrency=ticks_at_once,
            queues=",".join(QUEUES),
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        self.beat = Service(celery, max_interval=1, scheduler_cls=Scheduler)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT. The exit code: 0 when asked to stop, 1 when something broke."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # WhiteNoise's files: short, ours, and read whole; the warning would come with each page.
        warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._start_thread("celery-worker", self.worker.start)
        self._start_thread("celery-beat", self.beat.start)
        Collector().start()
        asyncio.run(self.web.serve())
        stopped = self.web.started and not self.broken
        # Daemon threads: they end with the process. A tick cut off here is run again by its lease's expiry.
        self.beat.stop()
        return 0 if stopped else 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.web.should_exit = True

    def _start_thread(self, name: str, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except BaseException:
                log.exception("%s ended", name)
            if not self.web.should_exit:
                self.broken = self.web.should_exit = True  # the supervisor starts a whole new process

        threading.Thread(target=run, name=name, daemon=True).start()
