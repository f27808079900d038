"""What a fault of a call means: for its record (GW-12), and for the replica that had it (GW-08). Pure."""

from apps.gateway.plane.core.choice import Failure
from apps.gateway.plane.core.errors import CallError
from apps.usage.record import Ending

_FAILURES = {
    "upstream_truncated": Failure.BROKEN,
    "upstream_unreadable": Failure.BROKEN,
    "upstream_error": Failure.ERROR,
    "upstream_unavailable": Failure.ERROR,
    "upstream_timeout": Failure.TIMEOUT,
    "upstream_credential": Failure.CREDENTIAL,
}
_ENDINGS = {
    "no_backend": Ending.NO_BACKEND,
    "backend_busy": Ending.NO_BACKEND,
    "pinned_backend_not_found": Ending.REFUSED,  # the caller's mistake: no engine was asked
    "upstream_truncated": Ending.UPSTREAM_TRUNCATED,
}


def failure_of(fault: CallError | None) -> Failure | None:
    """How the replica failed; None where it is none of its faults."""
    return None if fault is None else _FAILURES.get(fault.code or "")


def ending_of(fault: CallError | None) -> Ending:
    """How a call ended that had a replica, or wanted one; None = nothing was wrong."""
    if fault is None:
        return Ending.COMPLETED
    return _ENDINGS.get(fault.code or "", Ending.UPSTREAM_ERROR)
