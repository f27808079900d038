"""Puts an attempt to sleep: quiet first, then the engine's own call, then stopped and kept (SLEEP-01).

Owns that order and what is noted of it. Whatever the engine does, it ends stopped: the card's memory is
free then. Never removes anything, and never decides that something should sleep.
"""

from __future__ import annotations

import asyncio
import logging

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Observed, Phase
from agent.engines.catalog import get_engine
from agent.runtime.base import Exit, Kept
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.ending import begin_stop, conclude, fall_asleep, wished_end
from agent.supervisor.sleepmarks import Mark
from agent.supervisor.surroundings import Surroundings
from agent.supervisor.watching import build_target, why_ended

log = logging.getLogger("agent.supervisor")


def begin_sleep(around: Surroundings, a: Attempt, now: float) -> None:
    """It is to sleep. One that was never ready has no callers, and no weights to give back."""
    served = a.observed is Observed.READY
    a.drop_io()
    a.notes = []
    if not served:
        _stop_and_keep(around, a, now)
        return
    a.stage, a.drain_began_at = Stage.DRAINING, now
    a.quiet_since, a.requests, a.probe_after = None, None, now
    log.info("%s: to sleep, once its requests are answered", a.name)


def advance_draining(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """`why` it must not be here at all, None while it may."""
    assert a.instance is not None
    ended = around.runtime.poll(a.instance)
    if ended is not None:
        _ended_by_itself(around, a, now, ended, why)
    elif why is not None:
        begin_stop(around, a, now, why, wished_end(around))
    elif a.sleep is None:
        _go_on(around, a, now)
    elif _is_quiet(around, a, now):
        _call(around, a, now)


def _go_on(around: Surroundings, a: Attempt, now: float) -> None:
    """Called back before anything was done to it."""
    assert a.health is not None
    a.drop_io()
    a.health.clear()
    a.stage, a.probe_after = Stage.RUNNING, now
    around.tell(a, Phase.READY, why=reason(Code.READY))


def _is_quiet(around: Surroundings, a: Attempt, now: float) -> bool:
    """Whether it has had nothing to do for long enough, or its time is up."""
    assert a.sleep is not None and a.spec is not None
    if a.work is not None and a.work.done():
        done, a.work = a.work, None
        seen = done.result()
        a.requests = None if seen is None else seen.requests
        if a.requests == 0:
            a.quiet_since = now if a.quiet_since is None else a.quiet_since
        else:
            a.quiet_since = None
        a.probe_after = now + around.settings.loading_probe_s
    if a.work is None and now >= a.probe_after:
        a.work = asyncio.ensure_future(around.engines.work(build_target(around.settings, a.spec)))
        a.work.add_done_callback(lambda _: around.wake())
    if a.quiet_since is not None and now - a.quiet_since >= a.sleep.settle_seconds:
        return True
    waited = now - a.drain_began_at
    if a.sleep.quiet and a.requests is None and waited >= a.sleep.settle_seconds:
        return True
    if waited < a.sleep.drain_seconds:
        return False
    if a.quiet_since is None:
        count = "?" if a.requests is None else round(a.requests)
        a.notes.append(reason(Code.DRAIN_CUT, requests=count, after_s=round(waited)))
    return True


def _call(around: Surroundings, a: Attempt, now: float) -> None:
    """Ask the engine itself, where it can. From here on it has to be started anew before it serves."""
    assert a.spec is not None and a.sleep is not None
    around.marks.set(a.key, Mark.SLEEP)
    a.drop_io()
    engine = get_engine(a.spec.engine)
    if engine is None or not engine.can_sleep:
        a.notes.append(reason(Code.SLEEP_CALL_SKIPPED, engine=a.spec.engine or "-"))
        _stop_and_keep(around, a, now)
        return
    if not a.spec.ports:  # a pipeline's stage behind the head, which has told the whole engine
        _stop_and_keep(around, a, now)
        return
    if not a.spec.sleep_enabled:
        a.notes.append(reason(Code.SLEEP_CALL_FAILED, why=Code.SLEEP_ROUTES_CLOSED))
        _stop_and_keep(around, a, now)
        return
    a.stage = Stage.SLEEP_CALL
    target = build_target(around.settings, a.spec)
    call = around.engines.sleep(target, a.sleep.level, around.settings.sleep_call_s)
    a.sleep_call = asyncio.ensure_future(call)
    a.sleep_call.add_done_callback(lambda _: around.wake())


def advance_call(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """The engine's own call is under way; it has an end of its own (`sleep_call_s`)."""
    assert a.instance is not None and a.sleep_call is not None
    ended = around.runtime.poll(a.instance)
    if ended is not None:
        _ended_by_itself(around, a, now, ended, why)
    elif why is not None:
        begin_stop(around, a, now, why, wished_end(around))
    elif a.sleep_call.done():
        trouble = a.sleep_call.result()
        if trouble:
            log.warning("%s: its sleep call failed: %s", a.name, trouble)
            a.notes.append(reason(Code.SLEEP_CALL_FAILED, why=trouble))
        _stop_and_keep(around, a, now)


def _stop_and_keep(around: Surroundings, a: Attempt, now: float) -> None:
    around.marks.set(a.key, Mark.SLEEP)
    begin_stop(around, a, now, reason(Code.SLEEP_REQUESTED), Observed.ASLEEP)


def _ended_by_itself(around: Surroundings, a: Attempt, now: float, ended: Exit, why: Reason | None) -> None:
    """On its way to sleep it ended by itself: it lies there just as well, with a note of it."""
    if why is not None:
        conclude(around, a, now, wished_end(around), why=why, ended=ended)
        return
    around.marks.set(a.key, Mark.SLEEP)
    a.notes.append(why_ended(ended))
    fall_asleep(around, a, now, ended)


def advance_asleep(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """It lies there. Nothing wakes it but the server's word."""
    assert a.instance is not None
    if why is not None:
        conclude(around, a, now, Observed.GONE, why=why)
        return
    kept = around.runtime.kept(a.instance)
    if kept is Kept.GONE:
        conclude(around, a, now, Observed.GONE, why=reason(Code.CONTAINER_GONE), again=True)
    elif kept is Kept.RUNS:
        log.warning("%s: somebody else started it while it was to sleep; stopped again", a.name)
        a.observed = Observed.STARTING
        begin_stop(around, a, now, reason(Code.SLEEP_REQUESTED), Observed.ASLEEP)
