"""Which port the door leads to: of attempts that this run of the agent runs now, and no other.

Owns the choice among an attempt's ports, which is the server's too: the lowest port inside the
container. Never opens anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.desired import Key

FindPort = Callable[[str, int], int | None]


def find_in(attempts: Mapping[Key, Attempt]) -> FindPort:
    """A look-up among living attempts: the host port, or None where the attempt is not running here,
    has woken and not shown a token yet, is being stopped, or has no port. One that is to sleep takes what its
    callers still send until it is quiet."""

    def find(task_id: str, attempt: int) -> int | None:
        found = attempts.get((task_id, attempt))
        if found is None or found.stage not in (Stage.RUNNING, Stage.DRAINING) or found.spec is None:
            return None
        if found.canary_due:
            return None
        ports = sorted(found.spec.ports, key=lambda mapping: mapping.container_port)
        return ports[0].host_port if ports else None

    return find
