"""Opening, counting, closing and acknowledging alerts (OPS-09). One open alert a code and object."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F

from apps.alerts.kinds import KINDS
from apps.alerts.models import Alert, Delivery
from apps.alerts.services.webhooks import tell
from apps.core import audit
from apps.core.errors import Forbidden, Value


@dataclass(frozen=True, slots=True)
class Found:
    """A condition that holds now. `object_id` as in Alert; `params` are its sentence's values."""

    code: str
    object_id: str = ""
    params: dict[str, Value] = field(default_factory=dict)


def raise_alert(*, code: str, object_id: str, now: datetime, **params: Value) -> None:
    """Note something that happened: a new alert, or one more time of the open one, with the latest values."""
    with transaction.atomic():
        if not _open(Found(code, object_id, params), now):
            Alert.objects.filter(code=code, object_id=object_id, closed_at__isnull=True).update(
                times=F("times") + 1, last_at=now, params=params
            )


def settle_lasting(*, judged: Collection[str], found: Iterable[Found], now: datetime) -> tuple[int, int]:
    """Make the open alerts of the `judged` codes be those that were found; (opened, closed).

    A code that could not be judged is left out of `judged` by the caller, and its alerts stay as they are.
    Raises ValueError for a code that does not last. Call it inside the transaction of a lease's holder.
    """
    if wrong := [code for code in judged if not KINDS[code].lasting]:
        raise ValueError(f"not lasting: {wrong}")
    wanted = {(one.code, one.object_id): one for one in found if one.code in judged}
    present = {
        (row.code, row.object_id): row
        for row in Alert.objects.filter(code__in=judged, closed_at__isnull=True)
    }
    opened = sum(_open(one, now) for key, one in wanted.items() if key not in present)
    for key in wanted.keys() & present.keys():
        if present[key].params != wanted[key].params:
            Alert.objects.filter(pk=present[key].pk).update(params=wanted[key].params, last_at=now)
    over = [row for key, row in present.items() if key not in wanted]
    return opened, _close(over, now)


def forget_old(*, now: datetime) -> int:
    """Close what happened once and did not again, and drop what was closed long ago; how many were closed.
    Call it inside the transaction of a lease's holder."""
    once = [code for code, kind in KINDS.items() if not kind.lasting]
    quiet = now - timedelta(seconds=settings.ALERT_QUIET_S)
    closed = _close(Alert.objects.filter(code__in=once, closed_at__isnull=True, last_at__lt=quiet), now)
    old = now - timedelta(seconds=settings.ALERT_KEEP_S)
    Alert.objects.filter(closed_at__lt=old).delete()
    Delivery.objects.filter(waiting=False, created_at__lt=old).delete()
    return closed


def acknowledge_alerts(*, actor: audit.Actor, alerts: Iterable[Alert], now: datetime) -> int:
    """Note that somebody looks after these; how many were not acknowledged before. Raises Forbidden for
    anyone but an operator."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        done = 0
        for alert in alerts:
            fresh = Alert.objects.filter(pk=alert.pk, acknowledged_at__isnull=True)
            if fresh.update(acknowledged_at=now, acknowledged_by=actor.name[:150]):
                done += 1
                audit.note(
                    actor, "acknowledge_alert", kind="alert", public_id=alert.public_id, name=str(alert)
                )
    return done


def _open(one: Found, now: datetime) -> bool:
    """True for a new alert; False where one is open, also when another process was a moment faster."""
    if Alert.objects.filter(code=one.code, object_id=one.object_id, closed_at__isnull=True).exists():
        return False
    try:
        with transaction.atomic():
            alert = Alert.objects.create(
                code=one.code, object_id=one.object_id, params=one.params, opened_at=now, last_at=now
            )
    except IntegrityError:
        return False
    tell(alert, "opened", now)
    return True


def _close(rows: Iterable[Alert], now: datetime) -> int:
    closed = 0
    for row in list(rows):
        if Alert.objects.filter(pk=row.pk, closed_at__isnull=True).update(closed_at=now):
            row.closed_at = now
            tell(row, "closed", now)
            closed += 1
    return closed
