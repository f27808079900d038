"""What is left of a card: the arithmetic of SCHED-04 and SCHED-05, once for one card and for many.

Owns the formulas only. They are elementwise: a `Held` has numbers, or arrays of them. Memory in MB.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from agent.contract.states import TaskType
from apps.scheduling.policy.snapshot import CardHold, TaskView

# Fullness and its parts are whole numbers of a million, so that one card and many give equal figures.
MILLION = 1_000_000


class Held(Protocol):
    """A card with what is promised and held there; `reckon` fills the second half.

    `claims_mb`: per owner the larger of promise and measured use; `foreign_mb`: of strangers, 0 where nobody
    tells; `used_mb`: all that is measured; `known` 0 = total or use is not told. `total_mb` is 1 then.
    """

    promised: Any
    claims_mb: Any
    foreign_mb: Any
    used_mb: Any
    total_mb: Any
    reserve_mb: Any
    known: Any

    alone: Any  # nothing is held on it
    without_other: Any  # nothing but inference is

    largest_promise: Any  # percent that may still be promised; below 0 = none at all
    unpromised_mb: Any  # neither promised nor used; -1 = not known
    free_mb: Any  # the same less the reserves; 0 where not known
    free_percent: Any  # the largest promise whose memory is free; -1 = not known
    start_percent: Any  # the largest share of the card of which more is free
    fullness: Any  # 1..MILLION, more where more is promised than there is


def higher(first: Any, second: Any) -> Any:
    """The larger of two, elementwise."""
    return first + (second - first) * (second > first)


def add_task(held: Held, task: TaskView, *, borrowed: bool) -> None:
    """Hold a card for a task too. A borrower promises nothing, and who has no port is not counted (SHARE-04,
    SCHED-16)."""
    whole = task.whole_cards
    if not borrowed:
        percent = 100 if whole or task.percent is None else task.percent
        held.claims_mb += held.total_mb * percent // 100
        if task.counted or whole:
            held.promised += percent
    held.alone = False
    if task.task_type != TaskType.INFERENCE:
        held.without_other = False


def reckon(held: Held, limit: int) -> None:
    """What is left; `limit` is how much of a card may be promised, in percent (SCHED-05)."""
    total = held.total_mb
    # Strangers' memory counts, our own is not counted twice; where the driver does not tell whose it is, all
    # that is used stands against all that is promised (SCHED-04).
    taken = higher(held.claims_mb + held.foreign_mb, held.used_mb)
    left = higher(total - taken, 0)
    held.largest_promise = limit - held.promised
    held.unpromised_mb = (left + 1) * held.known - 1
    held.free_mb = higher(left - held.reserve_mb, 0) * held.known
    held.free_percent = ((held.unpromised_mb + 1) * 100 - 1) // total
    held.start_percent = (held.unpromised_mb * 100 - 1) // total
    held.fullness = (held.promised * 10_000 + MILLION - held.free_mb * MILLION // total) // 2 + 1


# Cards of a node are ranked by fullness, of equals the first one; no node may name more cards than this
# (fleet: services/cards.py), and with as many the numbers still fit into 32 bits.
SLOT_BITS = 8
SLOTS = 1 << SLOT_BITS


def rank(fullness: Any, slot: Any) -> Any:
    """A number that is higher for the card that is taken first; it tells both (`unrank`)."""
    return fullness * SLOTS + (SLOTS - 1 - slot)


def unrank(ranked: Any) -> tuple[Any, Any]:
    """(Fullness, place in the node)."""
    return ranked >> SLOT_BITS, SLOTS - 1 - (ranked & (SLOTS - 1))


class Sum(NamedTuple):
    """What the holds of a card come to."""

    promised: int  # percent; who has the card alone counts 100
    claims_mb: int
    other: bool  # work that is not inference


def sum_up_holds(holds: Iterable[CardHold], total_mb: int) -> Sum:
    """A borrower promises nothing (SHARE-04)."""
    promised = claims = 0
    other = False
    for hold in holds:
        percent = 100 if hold.percent is None else hold.percent
        claim = 0
        if not hold.borrowed:
            claim = total_mb * percent // 100
            promised += percent
        measured = hold.measured_mb
        claims += claim if measured is None or measured < claim else measured
        other |= not hold.inference
    return Sum(promised, claims, other)
