"""Hints: "something changed, look now". Never truth; losing every one of them only costs a period.

Sent after commit from one thread of its own with a bounded queue, so that a hanging broker or
channel layer never holds a request; what does not fit is dropped and counted.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from celery import current_app
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction

from apps.core import ticks

log = logging.getLogger("heteroflow.hints")

dropped = 0
_queue: "queue.Queue[tuple[Any, ...]]" = queue.Queue(maxsize=1000)
_starting = threading.Lock()
_sender: threading.Thread | None = None


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
    transaction.on_commit(lambda: _put(_send_group, group, message))


def _put(send: Callable[..., None], *args: Any) -> None:
    global dropped
    if settings.HINTS_INLINE:
        send(*args)
        return
    _ensure_sender()
    try:
        _queue.put_nowait((send, *args))
    except queue.Full:
        dropped += 1


def _ensure_sender() -> None:
    global _sender
    with _starting:
        if _sender is None or not _sender.is_alive():
            _sender = threading.Thread(target=_drain, name="hints", daemon=True)
            _sender.start()


def _drain() -> None:
    global dropped
    while True:
        send, *args = _queue.get()
        try:
            send(*args)
        except Exception:  # a hint may be lost, its thread may not
            dropped += 1
            log.warning("a hint was dropped", exc_info=True)


def _send_kick(name: str, queue_name: str) -> None:
    current_app.send_task(name, queue=queue_name, expires=5, retry=False, ignore_result=True)


def _send_group(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is not None:
        async_to_sync(layer.group_send)(group, message)
