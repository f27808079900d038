"""Hints: "something changed, look now". Never truth; losing every one of them only costs a period.

Sent after commit from one thread of its own with a bounded queue, so that a hanging broker or
channel layer never holds a request; what does not fit is dropped and counted.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from prometheus_client import Counter

from apps.core import ticks

log = logging.getLogger("heteroflow.hints")

QUEUE_LENGTH = 1000  # of what was said at once, mostly a single hint
DROPPED = Counter("heteroflow_hints_dropped", "Hints that were not sent; each costs a period at most.")

Hint = tuple[Any, ...]  # who sends it, and what

_queue: "queue.Queue[list[Hint]]" = queue.Queue(maxsize=QUEUE_LENGTH)
_lock = threading.Lock()
_sender: threading.Thread | None = None
_dropped = 0
_own = threading.local()  # a sending thread's connection to the broker and event loop; what a thread gathers


def dropped() -> int:
    """Hints of this process that were not sent: the queue was full, or broker or layer failed."""
    return _dropped


def kick(name: str) -> None:
    """Ask for a run of a tick after the present transaction commits."""
    loop = ticks.REGISTRY.get(name)
    queue_name = loop.queue if loop else "ticks"
    transaction.on_commit(lambda: _put(_send_kick, name, queue_name))


def look(node_id: str) -> None:
    """Tell a node's agent to ask now."""
    announce(f"node.{node_id}", {"type": "look"})


def announce(group: str, message: dict[str, Any]) -> None:
    """Send a small message to a channel group after commit; receivers re-read the rows."""
    transaction.on_commit(lambda: _put(_send_group, group, tuple(message.items())))


class _Gathered:
    """What a thread has to say, each once, until it is sent."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._said: dict[Hint, None] = {}
        self._sent_at = time.monotonic()

    def add(self, hint: Hint) -> None:
        self._said[hint] = None
        if time.monotonic() - self._sent_at >= self._longest_s:
            self.send()

    def send(self) -> None:
        said, self._said = [*self._said], {}
        self._sent_at = time.monotonic()
        if said:
            _send(said)


@contextmanager
def gathered(longest_s: float) -> Iterator[None]:
    """What this thread says inside is sent at the end, the same once; in a long block each `longest_s`. Sent
    at once, it would take the processor from the work: the sending thread is one of this process."""
    said = _own.gathered = _Gathered(longest_s)
    try:
        yield
    finally:
        _own.gathered = None
        said.send()


def _put(*hint: Any) -> None:
    said = getattr(_own, "gathered", None)
    if said is None:
        _send([hint])
    else:
        said.add(hint)


def _send(said: list[Hint]) -> None:
    if settings.HINTS_INLINE:
        for send, *args in said:
            send(*args)
        return
    _ensure_sender()
    try:
        _queue.put_nowait(said)
    except queue.Full:
        _count_dropped(len(said))


def _count_dropped(many: int = 1) -> None:
    global _dropped
    with _lock:
        _dropped += many
    DROPPED.inc(many)


def _ensure_sender() -> None:
    global _sender
    with _lock:
        if _sender is None or not _sender.is_alive():
            _sender = threading.Thread(target=_drain, name="hints", daemon=True)
            _sender.start()


def _drain() -> None:
    while True:
        for send, *args in _queue.get():
            try:
                send(*args)
            except Exception as error:  # a hint may be lost, its thread may not
                _count_dropped()
                log.warning("a hint was dropped: %s: %s", type(error).__name__, error)


def _send_kick(name: str, queue_name: str) -> None:
    broker = getattr(_own, "broker", None)
    if broker is None:
        # A connection of its own with short timeouts: the workers' ones wait for messages for long.
        timeout = settings.HINT_TIMEOUT_S
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        broker = current_app.connection_for_write(connect_timeout=timeout, transport_options=options)
        _own.broker = broker
    try:
        current_app.send_task(
            name,
            queue=queue_name,
            connection=broker,
            expires=settings.HINT_EXPIRES_S,
            retry=False,
            ignore_result=True,
        )
    except Exception:
        _own.broker = None  # opened again next time
        raise


def _send_group(group: str, message: tuple[tuple[str, Any], ...]) -> None:
    layer = get_channel_layer()
    if layer is not None:
        if not hasattr(_own, "runner"):
            _own.runner = asyncio.Runner()  # kept, so that the layer keeps its connection
        _own.runner.run(_group_send(layer, group, dict(message)))


async def _group_send(layer: Any, group: str, message: dict[str, Any]) -> None:
    await asyncio.wait_for(layer.group_send(group, message), settings.HINT_TIMEOUT_S)
