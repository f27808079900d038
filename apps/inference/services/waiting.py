"""Waiting for a woken task, in the request that woke it (SLEEP-02).

A waiting request holds a thread of its server, so that of a process only a few wait; the others are answered
at once, with what comes next.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from agent.contract.codes import Code
from agent.contract.states import Desired, Phase, State
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
    wait. One that falls asleep is waited for through its sleep. Never call it inside a transaction. Raises
    NotFound where its service was deleted meanwhile."""
    if wait_s <= 0 or (act.next.code != "next_wakes" and act.why.code != "wake_after_sleep"):
        return act  # nothing to wait for: it serves, or its wake waits for something else
    with _seat() as free:
        if not free:
            return act
        until = time.monotonic() + wait_s
        while _is_on_its_way(task) and time.monotonic() < until:
            time.sleep(settings.WAKE_POLL_S)
    fresh = Task.objects.filter(pk=task.pk).first()
    if fresh is None:
        raise NotFound
    return _what_became(fresh, act)


def _is_on_its_way(task: Task) -> bool:
    """Whether it wakes, or is to wake once it sleeps; not where its service was deleted meanwhile."""
    found = Task.objects.filter(pk=task.pk).values_list("state", "desired", "reason_code").first()
    if found is None:
        return False
    state, desired, code = found
    return state == State.WAKING or _is_yet_to_sleep(state, desired, code)


def _is_yet_to_sleep(state: str, desired: str, code: str) -> bool:
    """Whether it falls asleep, or has just now, and wakes then: nothing has been found in its way."""
    fell = state == State.DRAINING or (state == State.SLEEPING and code == Code.ASLEEP)
    return fell and desired == Desired.RUN


def _what_became(task: Task, act: Act) -> Act:
    why = Said(task.reason_code, task.reason_params)
    if _is_yet_to_sleep(task.state, task.desired, task.reason_code):
        return act
    match task.state:
        case State.WAKING:
            return act
        case State.RUNNING:
            next_code = "next_serves" if task.phase == Phase.READY else "next_ready"
            return Act(Did.SERVING, why, said(next_code))
        case State.FAILED | State.PENDING | State.SCHEDULING:
            return Act(Did.FAILED, why, said("next_recovers"))
        case State.SLEEPING if task.desired == Desired.RUN:
            return Act(Did.NOTED, why, said("next_wakes_by_itself"))
        case State.SLEEPING:
            return Act(Did.SLEEPING, why, said("next_stays_asleep"))
    return Act(Did.STOPPING, why, said("next_node_confirms"))
