"""The rows in which gateway processes say what they serve and what is in flight (SLEEP-06).

Owns writing and reading them. Judges nothing: who is idle or quiet is decided by whoever reads.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from apps.core import hints
from apps.routing.load import Load, Source
from apps.routing.models import GatewayLoad

WATCHER = "scaling.idle"  # the loop that calls replicas back


def say(name: str, load: Load, now: datetime, *, left: bool = False) -> None:
    """One process's word, in one statement. Raises DatabaseError."""
    row = GatewayLoad(
        name=name,
        table_version=load.version,
        in_flight=load.in_flight,
        held=load.held,
        used=load.used,
        backends=msgspec.to_builtins(load.backends),
        said_at=now,
        left=left,
    )
    GatewayLoad.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["table_version", "in_flight", "held", "used", "backends", "said_at", "left"],
    )
    if load.held:
        hints.kick(WATCHER)


def read() -> list[Source]:
    """What every process said last, those included that have left or died."""
    rows = GatewayLoad.objects.values_list(
        "name", "said_at", "left", "table_version", "in_flight", "held", "used", "backends"
    )
    return [
        Source(
            name, said_at, msgspec.convert(dict(zip(Load.__struct_fields__, load, strict=True)), Load), left
        )
        for name, said_at, left, *load in rows
    ]


def end_dead(is_dead: Callable[[str], bool]) -> None:
    """What a process had in work is over with it: where `is_dead` proves its end by its name, its row says
    so, as if it had left in good order. A process that lives speaks again and counts again."""
    present = GatewayLoad.objects.filter(left=False).values_list("name", flat=True)
    if dead := [name for name in present if is_dead(name)]:
        GatewayLoad.objects.filter(name__in=dead).update(left=True, in_flight={}, held={})


def forget(sources: Iterable[Source]) -> int:
    """Remove the words of processes that are gone, unless one spoke again since it was read."""
    return sum(
        GatewayLoad.objects.filter(name=source.name, said_at=source.said_at).delete()[0] for source in sources
    )
