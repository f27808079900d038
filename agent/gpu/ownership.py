"""Whose memory lies on a card: what the attempts that run there hold, and what is foreign to them (SCHED-04).

Owns that reckoning, and how a process is recognised. The driver names processes at best, so it may be that
nobody can tell: that is None, and never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.contract.machine import MOST_PROCESSES
from agent.contract.messages import CardHolder, CardReport
from agent.runtime import proctable

Key = tuple[str, int]  # task id, attempt


class Occupant(msgspec.Struct, frozen=True):
    """An attempt that runs here. `instance` is its runtime's handle: a container's id, where it has one."""

    instance: str
    gpu_uuids: list[str]


class Whose(msgspec.Struct, frozen=True):
    """What is known of a card's processes: whose each is (`owners`, by pid), which of them this machine knows
    nothing of (`unseen`: the agent stands in another process namespace, or they have just ended), which
    attempts run there, and how much no process was named for before they came (None = not known)."""

    owners: Mapping[int, Key]
    unseen: frozenset[int]
    here: frozenset[Key]
    rest_mb: int | None


def tell_whose(card: CardReport, whose: Whose, *, slack_mb: int, name_of: Callable[[int], str]) -> CardReport:
    """The card with its processes named, ours first, and the memory that is foreign."""
    if card.processes is None:
        return msgspec.structs.replace(card, foreign_mb=None if whose.here else card.vram_used_mb)
    named = [_named(one, whose.owners.get(one.pid), name_of) for one in card.processes]
    named.sort(key=lambda one: (not one.task_id, -(one.used_mb or 0), one.pid))
    return msgspec.structs.replace(
        card, processes=named[:MOST_PROCESSES], foreign_mb=_foreign_mb(card, whose, slack_mb)
    )


def _named(holder: CardHolder, key: Key | None, name_of: Callable[[int], str]) -> CardHolder:
    if key is None:
        return msgspec.structs.replace(holder, name=name_of(holder.pid))
    return msgspec.structs.replace(holder, task_id=key[0], attempt=key[1])


def _foreign_mb(card: CardReport, whose: Whose, slack_mb: int) -> int | None:
    """All that is used less what our processes hold; None where some of it might be ours unnamed."""
    if not whose.here or card.vram_used_mb is None:
        return card.vram_used_mb
    rest = unnamed_mb(card)
    if rest is None or any(one.pid in whose.unseen for one in card.processes or []):
        return None
    if rest - (whose.rest_mb or 0) > slack_mb:
        return None
    ours = [one.used_mb or 0 for one in card.processes or [] if whose.owners.get(one.pid) in whose.here]
    return max(0, card.vram_used_mb - sum(ours))


def unnamed_mb(card: CardReport) -> int | None:
    """Memory of a card that no listed process holds; None where that can't be told."""
    if card.vram_used_mb is None or card.processes is None:
        return None
    shares = [one.used_mb for one in card.processes]
    return None if None in shares else max(0, card.vram_used_mb - sum(share or 0 for share in shares))


def start_of_process(pid: int) -> int | None:
    """When it began, in ticks since boot; None where this machine knows no such process."""
    stat = proctable.read_stat(pid)
    return None if stat is None else stat.start_ticks


def name_of_process(pid: int) -> str:
    """As the kernel knows it, without arguments: those may hold secrets. "" where it is gone."""
    try:
        text = (proctable.PROC / str(pid) / "comm").read_text(errors="replace")
    except OSError:
        return ""
    return "".join(c for c in text if c.isprintable())


def owner_of_process(pid: int, running: Mapping[Key, Occupant]) -> Key | None:
    """Which of these attempts a process belongs to: by its container, else by what its environment says."""
    try:
        groups = (proctable.PROC / str(pid) / "cgroup").read_text()
    except (OSError, UnicodeDecodeError):
        groups = ""
    contained = next((key for key, one in running.items() if one.instance in groups), None)
    if contained is not None:  # first: what is in its environment a process may choose itself
        return contained
    try:
        entries = set((proctable.PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return None
    for key in running:
        said = {f"HETEROFLOW_TASK_ID={key[0]}".encode(), f"HETEROFLOW_ATTEMPT={key[1]}".encode()}
        if said <= entries:
            return key
    return None
