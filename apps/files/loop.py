"""The tick that keeps the store of requested files small and answers for nodes that are silent.

Owns when; `services.py` owns how.
"""

from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core.leases import Held
from apps.core.ticks import tick
from apps.files import services


@tick("files.tidy", every="FILE_TIDY_PERIOD_S")
def tidy(lease: Held, now: datetime) -> dict[str, Any]:
    """Every step may be repeated at any moment."""
    silent = services.give_up_silent(lease=lease, now=now)
    lease.renew(settings.TICK_LEASE_TTL_S)
    expired = services.drop_expired(lease=lease, now=now)
    lease.renew(settings.TICK_LEASE_TTL_S)
    return {"given_up": silent, "expired": expired, "orphans": services.drop_orphans()}
