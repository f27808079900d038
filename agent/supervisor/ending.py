"""How an attempt ends: asked, then killed after its grace, then told with exit code and last lines; or
kept, where it was to sleep.

Owns that order. Never decides that something should end.
"""

from __future__ import annotations

import logging

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Observed, Phase
from agent.runtime.base import Exit
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.lastlines import read_last_lines
from agent.supervisor.surroundings import Surroundings

log = logging.getLogger("agent.supervisor")
LAST_LINES = 20
KILL_PAUSE_S = 1.0


def wished_end(around: Surroundings) -> Observed:
    """Leaving ends the engine, not the wish for it: that is an exit, and no "gone"."""
    return Observed.EXITED if around.leaving else Observed.GONE


def begin_stop(around: Surroundings, a: Attempt, now: float, why: Reason, ending: Observed) -> None:
    """Ask it to end; `ending` is what is told once it has."""
    assert a.instance is not None
    a.drop_io()
    a.stage, a.why, a.ending = Stage.STOPPING, why, ending
    grace = min(a.stop_grace_s, around.settings.shutdown_s / 2) if around.leaving else a.stop_grace_s
    a.kill_after = now + grace
    around.tell(a, Phase.LEAVING, why=why)
    around.runtime.terminate(a.instance)


def advance_stopping(around: Surroundings, a: Attempt, why: Reason | None, now: float) -> None:
    """It was asked to end."""
    assert a.instance is not None
    if around.leaving:
        a.kill_after = min(a.kill_after, now + around.settings.shutdown_s / 2)
        a.ending = Observed.EXITED if a.ending is Observed.ASLEEP else a.ending
    elif why is not None:
        a.ending = Observed.GONE
    ended = around.runtime.poll(a.instance)
    if ended is not None and a.ending is Observed.ASLEEP:
        fall_asleep(around, a, now, ended)
    elif ended is not None:
        conclude(around, a, now, a.ending, why=a.why, ended=ended)
    elif now >= a.kill_after:
        log.warning("%s did not end in its grace period; killed", a.name)
        around.runtime.kill(a.instance)
        a.kill_after = now + KILL_PAUSE_S


def conclude(
    around: Surroundings,
    a: Attempt,
    now: float,
    observed: Observed,
    *,
    why: Reason | None,
    ended: Exit | None = None,
    silent: bool = False,
    again: bool = False,
) -> None:
    """The attempt has ended (or never began): say so with exit code and last lines. `again`: the same
    attempt may be made anew, so its log goes on."""
    a.drop_io()
    lines: list[str] = []
    if a.instance is not None:
        lines = read_last_lines(around.runtime.log_file(*a.key), LAST_LINES, a.secrets)
        around.runtime.forget(a.instance, again=again or observed is Observed.EXITED)
    around.logs.finish(a.task_id, a.attempt, final=observed is Observed.GONE and not again)
    a.instance = a.health = a.spec = None
    a.stage = Stage.GONE if observed is Observed.GONE else Stage.EXITED
    a.observed, a.told_gone_at = observed, now
    if not silent:
        notes, a.notes = a.notes, []
        around.tell(a, Phase.LEAVING, why=why, ended=ended, lines=lines, notes=notes)


def fall_asleep(around: Surroundings, a: Attempt, now: float, ended: Exit | None) -> None:
    """It has ended and is kept, or was found so."""
    assert a.instance is not None
    if ended is not None and ended.vanished:
        conclude(around, a, now, Observed.GONE, why=reason(Code.CONTAINER_GONE), again=True)
        return
    a.drop_io()
    around.runtime.keep(a.instance)
    around.logs.finish(a.task_id, a.attempt, final=False)
    a.health = None
    a.stage, a.observed = Stage.ASLEEP, Observed.ASLEEP
    notes, a.notes = a.notes, []
    around.tell(a, Phase.LEAVING, why=reason(Code.ASLEEP), ended=ended, notes=notes)
