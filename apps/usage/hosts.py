"""What each host's gateways say of its usage files (OPS-09): whether calls wait there to become rows.

The files lie on their host, so that nobody else can look: each flusher says it in a row, which whoever judges
reads. A host that is silent has said nothing, which is not that nothing waits. Never reads or writes a call.
"""

import socket
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from apps.usage.models import UsageHost
from apps.usage.selectors import oldest_waiting


def report(folder: Path, now: datetime) -> None:
    """Say what waits here, and forget hosts that said nothing for USAGE_HOST_KEEP_S. Raises DatabaseError."""
    values = {"oldest_at": oldest_waiting(folder), "updated_at": now}
    UsageHost.objects.update_or_create(name=host_name(), defaults=values)
    UsageHost.objects.filter(updated_at__lt=now - timedelta(seconds=settings.USAGE_HOST_KEEP_S)).delete()


def leave(folder: Path, now: datetime) -> None:
    """The last word of a gateway that ends: nothing more is expected of the host if nothing waits there.
    Others that serve on say so again. Raises DatabaseError."""
    report(folder, now)
    UsageHost.objects.filter(name=host_name(), oldest_at=None).delete()


def host_name() -> str:
    """This machine, or container, as rows name it."""
    return socket.gethostname()[:150]
