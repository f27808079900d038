"""Looks at what is wrong and lets alerts be it (OPS-09). Owns the order and that one topic that can't be
read leaves its alerts as they are and the others their turn. What is wrong: `conditions.py`.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from apps.alerts import services
from apps.alerts.selectors import open_objects
from apps.core.clock import listening_since
from apps.core.leases import Held
from apps.core.models import TickRun
from apps.core.ticks import tick
from apps.ops import conditions

log = logging.getLogger("heteroflow.ops")

NAME = "ops.watch"


@tick(NAME, every="ALERT_WATCH_PERIOD_S")
def watch(lease: Held, now: datetime) -> dict[str, Any]:
    """Judge each topic and settle its alerts in one transaction."""
    since = _looking_since(now)
    done: dict[str, Any] = {"looking_since": since.isoformat(), "opened": 0, "closed": 0}
    unread: list[str] = []
    kept = _first_seen()
    seen: dict[str, str] = {}
    for topic in conditions.TOPICS:
        lease.renew(settings.TICK_LEASE_TTL_S)
        try:
            found = topic.read(now, since)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("alerts %s could not be judged; they stay as they are", ", ".join(topic.codes))
            unread += topic.codes
            seen |= {key: at for key, at in kept.items() if key.split()[0] in topic.codes}
            continue
        if topic.holds:
            first = {_key(one): kept.get(_key(one), now.isoformat()) for one in found}
            seen |= first
            before = now - timedelta(seconds=getattr(settings, topic.holds))
            present = open_objects(topic.codes)
            found = [
                one
                for one in found
                if (one.code, one.object_id) in present
                or max(datetime.fromisoformat(first[_key(one)]), since) <= before
            ]
        with lease.transaction():
            opened, closed = services.settle_lasting(judged=topic.codes, found=found, now=now)
        done["opened"] += opened
        done["closed"] += closed
    with lease.transaction():
        done["closed"] += services.forget_old(now=now)
    if unread:
        done["unread"] = unread
    if seen:
        done["first_seen"] = seen
    return done


def _key(one: services.Found) -> str:
    return f"{one.code} {one.object_id}"


def _first_seen() -> dict[str, str]:
    """When what must hold for a while was first found, by code and object; ISO times of the last run."""
    row = TickRun.objects.filter(name=NAME).first()
    kept = row.detail.get("first_seen") if row is not None else None
    return kept if isinstance(kept, dict) else {}


def _looking_since(now: datetime) -> datetime:
    """As recovery does it: after a start, and after a gap, everything gets its full time again."""
    row = TickRun.objects.filter(name=NAME).first()
    kept = row.detail.get("looking_since") if row is not None else None
    return listening_since(
        row.started_at if row is not None else None,
        datetime.fromisoformat(kept) if isinstance(kept, str) else None,
        now,
        gap_s=3 * settings.ALERT_WATCH_PERIOD_S + settings.TICK_LEASE_TTL_S,
    )
