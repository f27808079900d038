"""Which replicas run on hot cards (GW-07), by what their nodes' heartbeats told.

Owns the reading, one statement. A temperature that nobody told, or a node that has been silent for
NODE_SILENT_S, is no temperature: such a replica is not in the answer, and not hot.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Max

from agent.contract.states import State
from apps.workloads.models import CardClaim


def hot_replicas(at_least_c: int, now: datetime) -> dict[str, int]:
    """Degrees Celsius of the hottest card of each running replica that has one at least so hot."""
    heard = now - timedelta(seconds=settings.NODE_SILENT_S)
    rows = CardClaim.objects.filter(
        card__sample__temperature_c__gte=at_least_c,
        card__node__liveness__last_seen_at__gte=heard,
        claim__released_at__isnull=True,
        claim__task__state=State.RUNNING,
        claim__attempt=F("claim__task__attempt"),
    )
    hottest = Max("card__sample__temperature_c")
    return dict(rows.order_by().values_list("claim__task__public_id").annotate(hottest))
