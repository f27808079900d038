"""The red line: which tenants may share a card, a node or a service (TEN-03, SCHED-09).

Fails closed: a question that can not be answered counts as "no".
"""

import logging

from apps.tenants.models import SharedGroup, Tenant

log = logging.getLogger("heteroflow.tenants")


def may_share(first: Tenant | int, second: Tenant | int) -> bool:
    """Whether two tenants (or their row ids) are one, or stand in one shared group."""
    try:
        one, other = (t.pk if isinstance(t, Tenant) else t for t in (first, second))
        if one == other:
            return True
        return SharedGroup.objects.filter(tenants=one).filter(tenants=other).exists()
    except Exception:
        log.exception("may two tenants share? The question failed, so: no")
        return False
