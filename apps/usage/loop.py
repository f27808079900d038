"""The loop that counts card time (GW-18): every claim that lives or was released since, in portions.

Owns the order only; `cardtime.py` counts and writes.
"""

import logging
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core.leases import Held, LeaseLost
from apps.core.ticks import tick
from apps.usage.cardtime import CHUNK, settle, uncounted
from apps.workloads.models import Claim

log = logging.getLogger("heteroflow.usage")

NAME = "usage.card_time"


@tick(NAME, every="CARD_TIME_PERIOD_S")
def count_card_time(lease: Held, now: datetime) -> dict[str, Any]:
    """One run. A portion that fails is tried claim by claim, so that one bad row costs one row (RECOV-05)."""
    ids = list(uncounted().values_list("pk", flat=True))
    rows, failed = 0, 0
    for start in range(0, len(ids), CHUNK):
        lease.renew(settings.TICK_LEASE_TTL_S)
        portion = ids[start : start + CHUNK]
        written = _settle(lease, portion, now)
        if written is None:
            each = [_settle(lease, [claim], now) for claim in portion]
            failed += sum(one is None for one in each)
            written = sum(one or 0 for one in each)
        rows += written
    return {"claims": len(ids), "rows": rows} | ({"failed": failed} if failed else {})


def _settle(lease: Held, ids: list[int], now: datetime) -> int | None:
    """None where it failed."""
    try:
        with lease.transaction():
            return settle(Claim.objects.filter(pk__in=ids), now=now)
    except LeaseLost:
        raise
    except Exception:
        log.exception("the card time of %s claims from row %s on could not be counted", len(ids), ids[0])
        return None
