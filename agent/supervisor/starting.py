"""From a granted claim to an engine that is watched (AGENT-07, -09).

Owns the way there, and the taking over of what an earlier run of the agent started. Never decides
whether an attempt should run.
"""

from __future__ import annotations

import logging

from agent.contract.codes import Code, reason
from agent.contract.messages import TaskSpec
from agent.contract.states import Observed, Phase
from agent.masking import secret_values
from agent.plainlog import MASKING
from agent.runtime.base import Adopted, Instance, PortBusy, Starting, StartRefused
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.ending import begin_stop, conclude, fall_asleep
from agent.supervisor.sleepmarks import Mark
from agent.supervisor.surroundings import Surroundings
from agent.supervisor.watching import build_monitor, needs_canary

log = logging.getLogger("agent.supervisor")
MAX_START_PAUSE_S = 15.0
MOST_PORTS = 8  # given up on, one after the other, by one attempt


def take_spec(around: Surroundings, a: Attempt, spec: TaskSpec) -> None:
    """The claim is granted."""
    know(a, spec)
    a.stage = Stage.STARTING
    around.tell(a, Phase.CLAIMED)
    around.wake()


def know(a: Attempt, spec: TaskSpec) -> None:
    """Keep the spec, and its secrets out of every log."""
    a.spec, a.claimed = spec, True
    a.secrets = [s for s in (spec.engine_key, *secret_values(spec.env)) if s]
    MASKING.add(*a.secrets)


def start(around: Surroundings, a: Attempt, now: float) -> None:
    """One try to start it, or to hear how far its start is."""
    if now < a.start_after or a.spec is None or not cards_are_free(around, a, now):
        return
    try:
        begun = around.runtime.start(a.spec)
    except StartRefused as error:
        announce(around, a, Phase.CREATING)
        conclude(around, a, now, Observed.EXITED, why=error.reason)
        return
    except PortBusy as error:
        announce(around, a, Phase.CREATING)
        if not wait_for_port(around, a, now, error.port):
            _ask_for_another(around, a, now, error.port)
        return
    if isinstance(begun, Starting):
        if begun.phase is not Phase.NONE:
            announce(around, a, begun.phase)
        return
    announce(around, a, Phase.CREATING)
    watch(around, a, begun, now, age_s=0.0)
    around.tell(a, Phase.LOADING)


def cards_are_free(around: Surroundings, a: Attempt, now: float) -> bool:
    """Whether memory of whatever ended on its cards is given back. An attempt whose card is in quarantine has
    failed: the server places the next one elsewhere."""
    assert a.spec is not None
    if a.cards_free:
        return True
    why = around.cards.hindrance(a.spec.gpu_uuids, now)
    a.cards_free = why is None
    if why is not None and around.cards.is_quarantined(a.spec.gpu_uuids):
        announce(around, a, Phase.CREATING)
        conclude(around, a, now, Observed.EXITED, why=why)
    return a.cards_free


def wait_for_port(around: Surroundings, a: Attempt, now: float, port: int) -> bool:
    """Try again later, with growing pauses; False where it was waited for `port_wait_s` in all (AGENT-07)."""
    if a.start_deadline is None:
        a.start_deadline = now + around.settings.port_wait_s
    if now >= a.start_deadline:
        return False
    log.warning("%s: port %d is in use; trying again", a.name, port)
    a.start_after = now + a.start_pause_s
    a.start_pause_s = min(a.start_pause_s * 2, MAX_START_PAUSE_S)
    return True


def _ask_for_another(around: Surroundings, a: Attempt, now: float, port: int) -> None:
    """The server gives out ports, so that no two attempts get one: the claim is asked for anew, with the
    ports that are of no use. A port that the user fixed, or that came back, has failed."""
    assert a.spec is not None
    movable = any(mapping.movable for mapping in a.spec.ports if mapping.host_port == port)
    if not movable or port in a.busy_ports or len(a.busy_ports) >= MOST_PORTS:
        conclude(around, a, now, Observed.EXITED, why=reason(Code.PORT_CONFLICT, port=port))
        return
    log.warning("%s: port %d is still in use; asking for another", a.name, port)
    a.busy_ports.append(port)
    a.stage, a.announced = Stage.WANTED, Phase.CLAIMED
    a.claim_after = now
    around.wake()


def announce(around: Surroundings, a: Attempt, phase: Phase) -> None:
    """Tell how far the start is, each phase once."""
    if phase is not a.announced:
        a.announced = phase
        around.tell(a, phase)


def watch(around: Surroundings, a: Attempt, instance: Instance, now: float, *, age_s: float) -> None:
    """From now on it runs: look after its health and its log. `age_s` since its real start."""
    assert a.spec is not None
    a.instance, a.stage = instance, Stage.RUNNING
    a.health = build_monitor(around.settings, a.spec, now, age_s=age_s)
    a.probe_after = now
    a.canary_due = needs_canary(a.spec) and around.marks.get(a.key) is not None
    a.canary_after, a.canary_until = now, None
    around.logs.follow(a.task_id, a.attempt, around.runtime.log_file(*a.key), a.secrets)


def adopt(around: Surroundings, known: Attempt | None, found: Adopted, now: float) -> Attempt:
    """Take over what an earlier run started (AGENT-09). The heartbeat names it; nothing is told, but of
    one that sleeps, since the report of that may have ended with the earlier run."""
    key = found.instance.task_id, found.instance.attempt
    if known is not None and known.stage not in (Stage.WANTED, Stage.CLAIMING):
        log.error("%s.%d: found again while it is %s", *key, known.stage.value)
        return known
    if known is not None:
        known.drop_io()
    a = known or Attempt(*key, born_at=now, stop_grace_s=around.settings.adopted_grace_s)
    know(a, found.spec)
    mark = around.marks.get(key)
    watch(around, a, found.instance, now, age_s=found.age_s)
    if mark is not None and found.stopped:
        fall_asleep(around, a, now, None)
    elif mark is Mark.SLEEP:
        # Its engine may have been told to drop its weights: stopped first, whatever is wanted now.
        begin_stop(around, a, now, reason(Code.SLEEP_REQUESTED), Observed.ASLEEP)
    return a
