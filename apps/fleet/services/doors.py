"""What the dial-back found out about nodes' doors, as rows (AGENT-16).

Owns the door's fields of Liveness. A finding counts only for the door that was dialled: where the
node has said another address meanwhile, it is dropped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from apps.core import hints
from apps.core.leases import Held
from apps.fleet.doors import DoorRow
from apps.fleet.models import DoorState, Liveness, Node


@dataclass(frozen=True)
class DoorChanges:
    opened: int = 0
    closed: int = 0


def note_doors(
    *, lease: Held, dialled: Iterable[DoorRow], found: Mapping[int, str], now: datetime
) -> DoorChanges:
    """Write what was found ("" = open, else why not), in one transaction of the lease's holder.

    Only doors whose state or reason changed get a new `door_since`. Raises LeaseLost.
    """
    dials = {row.node_id: row.dial for row in dialled if row.node_id in found}
    opened = closed = 0
    with lease.transaction():
        rows = list(Liveness.objects.select_for_update().filter(node__in=dials).order_by("pk"))
        # Read after the lock, which every heartbeat takes before it changes the address.
        present = dict(Node.objects.filter(pk__in=dials).values_list("pk", "dial"))
        same = []
        for live in rows:
            if present.get(live.node_id) != dials[live.node_id]:
                continue
            why = found[live.node_id]
            state = DoorState.CLOSED if why else DoorState.OPEN
            if (live.door_state, live.door_reason) == (state, why):
                same.append(live.pk)
                continue
            opened += state is DoorState.OPEN
            closed += state is DoorState.CLOSED and live.door_state != DoorState.CLOSED
            since = live.door_since if live.door_state == state else now
            Liveness.objects.filter(pk=live.pk).update(
                door_state=state, door_reason=why, door_since=since, door_checked_at=now
            )
        Liveness.objects.filter(pk__in=same).update(door_checked_at=now)
        if opened:
            hints.kick("scheduling.place")
    return DoorChanges(opened, closed)


def forget_door(live: Liveness, now: datetime) -> None:
    """The node has another door, or another run of its agent holds it: nothing is known of it.
    Call inside the transaction that holds the row."""
    Liveness.objects.filter(pk=live.pk).update(
        door_state=DoorState.UNKNOWN, door_reason="", door_since=now, door_checked_at=None
    )
    hints.kick("fleet.doors")
