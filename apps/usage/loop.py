"""The loops that count: card time (GW-18), of every claim that lives or was released since; and the sums of
usage records (GW-12), with what is let go after that. In portions.

Own the order only; `cardtime.py` and `totals.py` count and write.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core import hints
from apps.core.leases import Held, LeaseLost
from apps.core.ticks import tick
from apps.usage import totals
from apps.usage.cardtime import CHUNK, settle, uncounted
from apps.workloads.models import Claim

log = logging.getLogger("heteroflow.usage")

NAME = "usage.card_time"
TOTALS = "usage.totals"


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


@tick(TOTALS, every="USAGE_TOTALS_PERIOD_S")
def keep_totals(lease: Held, now: datetime) -> dict[str, Any]:
    """One run, of at most USAGE_TOTALS_RECORDS records; what is left over is the next one's, which begins at
    once. Counting comes first: what can't be let go keeps nothing from it."""
    most = settings.USAGE_TOTALS_RECORDS
    counted = _in_portions(lease, most, totals.add_up)
    if counted >= most:
        hints.kick(TOTALS)
    records, hours = settings.USAGE_RECORDS_KEEP_DAYS, settings.USAGE_HOURS_KEEP_DAYS
    gone = _in_portions(lease, most, lambda n: totals.forget_records(now, keep_days=records, most=n))
    gone += _in_portions(lease, most, lambda n: totals.forget_hours(now, keep_days=hours, most=n))
    return {"records": counted} | ({"forgotten": gone} if gone else {})


def _in_portions(lease: Held, most: int, work: Callable[[int], int]) -> int:
    """Do it until nothing is left or `most` was done; answers how much."""
    done = 0
    while done < most:
        lease.renew(settings.TICK_LEASE_TTL_S)
        portion = min(totals.PORTION, most - done)
        with lease.transaction():
            found = work(portion)
        done += found
        if found < portion:
            break
    return done
