"""What waits for the operator: a lease without an end, taken by one command and given back by another.

Shown in the console with the other leases. Never expires and is never taken over.
"""

from apps.core.models import Lease, PublishedVersion

# After a restore the rows are older than the machines: nothing is removed there until a person says so.
REMOVALS = "agents.removals"


def is_held(name: str) -> bool:
    """Whether it waits. Raises DatabaseError when that can not be read."""
    return Lease.objects.filter(name=name).exclude(holder="").exists()


def release(name: str) -> bool:
    """Let it go on; False where it did not wait."""
    return bool(Lease.objects.filter(name=name).exclude(holder="").update(holder="", expires_at=None))


def settling(why: str) -> list[str]:
    """SQL of both databases for the transaction that brings back old rows: leases of processes that
    ended long ago are free, removals are held, and who has read a published table reads it again.

    As SQL, since these rows may be of an older schema than the models.
    """
    leases, holder = Lease._meta.db_table, why[:200].replace("'", "''")
    return [
        f"UPDATE {leases} SET holder = '', expires_at = NULL",  # noqa: S608 - our own names
        f"INSERT INTO {leases} (name, holder, fence, expires_at) VALUES ('{REMOVALS}', '{holder}', 1, NULL)"  # noqa: S608
        f" ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = {leases}.fence + 1",
        f"UPDATE {PublishedVersion._meta.db_table} SET version = version + 1",  # noqa: S608
    ]
