"""Watches an engine that runs: its end, and its health by probes beside the loop (AGENT-08).

Owns when a probe is made and what follows from its verdict. Judges nothing itself (`health.py` does).
"""

from __future__ import annotations

import asyncio
import logging

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Observed, Phase
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.ending import begin_stop, conclude, wished_end
from agent.supervisor.sleeping import begin_sleep
from agent.supervisor.surroundings import Surroundings
from agent.supervisor.waking import advance_canary
from agent.supervisor.watching import build_target, why_ended

log = logging.getLogger("agent.supervisor")


def advance_running(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """`why` it must not run here, None while it should."""
    if a.instance is None:
        return
    ended = around.runtime.poll(a.instance)
    if ended is not None:
        own = why_ended(ended)
        gone = why is not None and not around.leaving
        conclude(around, a, now, Observed.GONE if gone else Observed.EXITED, why=why or own, ended=ended)
    elif why is not None:
        begin_stop(around, a, now, why, wished_end(around))
    elif a.sleep is not None:
        begin_sleep(around, a, now)
    else:
        _watch_health(around, a, now)
        if a.stage is Stage.RUNNING and a.canary_due and a.health is not None and a.health.ready:
            advance_canary(around, a, now)


def _watch_health(around: Surroundings, a: Attempt, now: float) -> None:
    if a.health is None or a.spec is None:
        return
    if not around.runtime.answers():
        # With Docker its published ports are away too: such failures say nothing of the engine.
        a.drop_io()
        a.health.clear()
        a.probe_after = now + around.settings.loading_probe_s
        return
    if a.probe is None:
        if now >= a.probe_after:
            a.probe = asyncio.ensure_future(around.engines.probe(build_target(around.settings, a.spec)))
            a.probe.add_done_callback(lambda _: around.wake())
        return
    if not a.probe.done():
        return
    done, a.probe = a.probe, None
    verdict = a.health.judge(done.result(), now=now, progress=_log_grew(around, a))
    a.probe_after = now + a.health.pause_s(now)
    if verdict.degraded and verdict.degraded != a.degraded:
        log.warning("%s: %s", a.name, verdict.degraded)
    a.degraded = verdict.degraded
    if verdict.failed is not None:
        a.observed = Observed.UNHEALTHY
        around.tell(a, Phase.UNHEALTHY, why=verdict.failed)
        begin_stop(around, a, now, verdict.failed, Observed.EXITED)
    elif verdict.became_ready and not a.canary_due:
        a.observed = Observed.READY
        around.tell(a, Phase.READY, why=reason(Code.READY))


def _log_grew(around: Surroundings, a: Attempt) -> bool:
    try:
        size = around.runtime.log_file(*a.key).stat().st_size
    except FileNotFoundError:
        return False
    before, a.log_size = a.log_size, size
    return size > before
