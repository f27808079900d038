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
}


def failure_of(fault: CallError | None) -> Failure | None:
    """How the replica failed; None where it is none of its faults."""
    return None if fault is None else _FAILURES.get(fault.code or "")


def ending_of(fault: CallError | None) -> Ending:
    """How a call ended that had a replica, or wanted one; None = nothing was wrong."""
    if fault is None:
        return Ending.COMPLETED
    if fault.code in ("no_backend", "backend_busy"):
        return Ending.NO_BACKEND
    return Ending.UPSTREAM_TRUNCATED if fault.code == "upstream_truncated" else Ending.UPSTREAM_ERROR
