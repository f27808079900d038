"""What waits for the operator: a lease without an end, taken by one command and given back by another.

Shown in the console with the other leases. Never expires and is never taken over.
"""

from django.db.models import F

from apps.core.models import Lease

# After a restore the rows are older than the machines: nothing is removed there until a person says so.
REMOVALS = "agents.removals"


def hold(name: str, why: str) -> None:
    """Make the named thing wait. `why` is what the console shows as holder."""
    Lease.objects.get_or_create(name=name)
    Lease.objects.filter(name=name).update(holder=why[:200], expires_at=None, fence=F("fence") + 1)


def is_held(name: str) -> bool:
    """Whether it waits. Raises DatabaseError when that can not be read."""
    return Lease.objects.filter(name=name).exclude(holder="").exists()


def release(name: str) -> bool:
    """Let it go on; False where it did not wait."""
    return bool(Lease.objects.filter(name=name).exclude(holder="").update(holder="", expires_at=None))
