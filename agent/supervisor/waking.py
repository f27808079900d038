"""Wakes what sleeps: the same container started again, healthy, then one token (SLEEP-02, -03).

Owns that order. What can not be started again is told as gone: the server then lets the same attempt be
made anew. Never decides that something should wake.
"""

from __future__ import annotations

import asyncio
import logging

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Observed, Phase
from agent.runtime.base import KeptLost, PortBusy, Starting, StartRefused
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.ending import begin_stop, conclude, wished_end
from agent.supervisor.sleepmarks import Mark
from agent.supervisor.starting import cards_are_free, wait_for_port, watch
from agent.supervisor.surroundings import Surroundings
from agent.supervisor.watching import build_target

log = logging.getLogger("agent.supervisor")
CANARY_PAUSE_S = 1.0


def begin_wake(around: Surroundings, a: Attempt) -> None:
    """It is wanted again."""
    around.marks.set(a.key, Mark.WAKE)
    a.stage, a.observed = Stage.WAKING, Observed.STARTING
    a.start_after, a.start_pause_s, a.start_deadline = 0.0, 0.5, None
    a.log_size, a.cards_free = 0, False
    log.info("%s: to wake", a.name)
    around.wake()


def advance_waking(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """One try to start it again, or to hear how far that is."""
    assert a.instance is not None and a.spec is not None
    if why is not None:
        if around.runtime.abandon(*a.key):
            conclude(around, a, now, wished_end(around), why=why)
        return
    if now < a.start_after or not cards_are_free(around, a, now):
        return
    try:
        begun = around.runtime.restart(a.instance, a.spec)
    except KeptLost as error:
        log.warning("%s: what was kept can't be started again: %s", a.name, error)
        conclude(around, a, now, Observed.GONE, why=reason(Code.CONTAINER_GONE), again=True)
    except StartRefused as error:
        conclude(around, a, now, Observed.EXITED, why=error.reason)
    except PortBusy as error:
        if not wait_for_port(around, a, now, error.port):
            _give_up_port(around, a, now, error.port)
    else:
        if not isinstance(begun, Starting):
            watch(around, a, begun, now, age_s=0.0)
            around.tell(a, Phase.LOADING)


def _give_up_port(around: Surroundings, a: Attempt, now: float, port: int) -> None:
    """A container keeps its port: where that was nobody's choice it is made anew, with another (AGENT-07)."""
    assert a.spec is not None
    why = reason(Code.PORT_CONFLICT, port=port)
    if any(mapping.movable for mapping in a.spec.ports if mapping.host_port == port):
        conclude(around, a, now, Observed.GONE, why=why, again=True)
    else:
        conclude(around, a, now, Observed.EXITED, why=why)


def advance_canary(around: Surroundings, a: Attempt, now: float) -> None:
    """It is healthy, which says nothing of its weights: ready is who answers with a token."""
    assert a.spec is not None
    if a.canary_until is None:
        a.canary_until = now + around.settings.canary_s
    if a.canary is None:
        if now >= a.canary_after:
            target = build_target(around.settings, a.spec)
            left = max(a.canary_until - now, CANARY_PAUSE_S)
            a.canary = asyncio.ensure_future(around.engines.canary(target, left))
            a.canary.add_done_callback(lambda _: around.wake())
        return
    if not a.canary.done():
        return
    done, a.canary = a.canary, None
    trouble = done.result()
    if not trouble:
        a.canary_due, a.canary_until = False, None
        around.marks.drop(a.key)
        a.observed = Observed.READY
        around.tell(a, Phase.READY, why=reason(Code.READY))
    elif now >= a.canary_until:
        why = reason(Code.CANARY_FAILED, why=trouble)
        a.observed = Observed.UNHEALTHY
        around.tell(a, Phase.UNHEALTHY, why=why)
        begin_stop(around, a, now, why, Observed.EXITED)
    else:
        log.warning("%s: no first token yet: %s", a.name, trouble)
        a.canary_after = now + CANARY_PAUSE_S
