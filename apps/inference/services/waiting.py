"""Waiting for a woken task, in the request that woke it (SLEEP-02).

A waiting request holds a thread of its server, so that of a process only a few wait; the others are answered
at once, with what comes next.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from agent.contract.states import Phase, State
from apps.core.errors import NotFound
from apps.workloads.models import Task
from apps.workloads.services import Act, Did, Said, said

_taken = 0
_lock = threading.Lock()


@contextmanager
def _seat() -> Iterator[bool]:
    """Whether one of the process's WAKE_WAITERS seats was free; held until the block ends."""
    global _taken
    with _lock:
        got = _taken < settings.WAKE_WAITERS
        _taken += got
    try:
        yield got
    finally:
        with _lock:
            _taken -= got


def wait_awake(task: Task, act: Act, *, wait_s: float) -> Act:
    """What became of a wake within `wait_s`; `act` itself where that is not known by then, or nobody may
    wait. Never call it inside a transaction. Raises NotFound where its service was deleted meanwhile."""
    if wait_s <= 0 or act.next.code != "next_wakes":
        return act  # nothing to wait for: it serves, or its wake waits for something else
    with _seat() as free:
        if not free:
            return act
        until = time.monotonic() + wait_s
        while _state_of(task) == State.WAKING and time.monotonic() < until:
            time.sleep(settings.WAKE_POLL_S)
    fresh = Task.objects.filter(pk=task.pk).first()
    if fresh is None:
        raise NotFound
    return _what_became(fresh, act)


def _state_of(task: Task) -> str | None:
    """None where its service was deleted meanwhile."""
    return Task.objects.filter(pk=task.pk).values_list("state", flat=True).first()


def _what_became(task: Task, act: Act) -> Act:
    why = Said(task.reason_code, task.reason_params)
    match task.state:
        case State.WAKING:
            return act
        case State.RUNNING:
            next_code = "next_serves" if task.phase == Phase.READY else "next_ready"
            return Act(Did.SERVING, why, said(next_code))
        case State.FAILED | State.PENDING | State.SCHEDULING:
            return Act(Did.FAILED, why, said("next_recovers"))
        case State.SLEEPING:
            return Act(Did.SLEEPING, why, said("next_stays_asleep"))
    return Act(Did.STOPPING, why, said("next_node_confirms"))
