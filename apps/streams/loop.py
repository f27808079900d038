"""The tick that keeps the log store small: old pieces of long logs, logs of deleted tasks.

Owns when; `services.py` owns how. Never shortens a log below LOG_KEEP_BYTES while all together are
within LOG_STORE_BYTES.
"""

from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core.leases import Held
from apps.core.ticks import tick
from apps.streams import services


@tick("streams.tidy", every="LOG_TIDY_PERIOD_S")
def tidy(lease: Held, now: datetime) -> dict[str, Any]:
    """Every step may be repeated at any moment."""
    dropped = services.drop_old_chunks(lease=lease, keep_bytes=settings.LOG_KEEP_BYTES)
    lease.renew(settings.TICK_LEASE_TTL_S)
    orphans = services.drop_orphans()
    lease.renew(settings.TICK_LEASE_TTL_S)
    dropped += services.drop_above(lease=lease, store_bytes=settings.LOG_STORE_BYTES)
    return {"chunks_dropped": dropped, "logs_dropped": orphans}
