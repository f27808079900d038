"""The dial-back: is each online node's door there for the gateway (AGENT-16)?

Owns when, how many at once and how long. The dialling is `doors.py`, outside of every transaction;
what was found is written by `services/doors.py`. Nodes that are dialled directly have no door.
"""

import logging
import time
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core import hints
from apps.core.leases import Held
from apps.core.ticks import tick
from apps.fleet import selectors
from apps.fleet.doors import dial_doors
from apps.fleet.services.doors import note_doors

log = logging.getLogger("heteroflow.fleet")

NAME = "fleet.doors"


@tick(NAME, every="DOOR_CHECK_PERIOD_S")
def check_doors(lease: Held, now: datetime) -> dict[str, Any]:
    """Dial the doors that are due, in portions; what the budget leaves is kicked on."""
    begun = time.monotonic()
    due = selectors.doors_due(now)
    done = {"dialled": 0, "opened": 0, "closed": 0}
    size = settings.DOOR_DIALS_AT_ONCE
    for first in range(0, len(due), size):
        if time.monotonic() - begun > settings.DOOR_CHECK_BUDGET_S:
            hints.kick(NAME)
            break
        portion = due[first : first + size]
        lease.renew(settings.TICK_LEASE_TTL_S)
        found = dial_doors(portion, timeout_s=settings.DOOR_DIAL_TIMEOUT_S)
        changes = note_doors(lease=lease, dialled=portion, found=found, now=now)
        done["dialled"] += len(portion)
        done["opened"] += changes.opened
        done["closed"] += changes.closed
    if done["closed"]:
        log.warning("%s node(s) can't be reached through their door", done["closed"])
    return done
