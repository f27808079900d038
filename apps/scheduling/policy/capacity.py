"""What is left of a card: the arithmetic of SCHED-04 and SCHED-05, once for one card and for many.

Owns the formulas only. They are elementwise: given numbers, or arrays of them. Memory in MB.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from agent.contract.states import TaskType
from apps.scheduling.policy.snapshot import CardHold, TaskView

# Fullness and its parts are whole numbers of a million, so that one card and many give equal figures.
MILLION = 1_000_000


# What `reckon` tells, elementwise.
LEFT = (
    "largest_promise",  # percent that may still be promised; below 0 = none at all
    "unpromised_mb",  # neither promised nor used; -1 = not known
    "free_mb",  # the same less the reserves; 0 where not known
    "free_percent",  # the largest promise whose memory is free; -1 = not known
    "start_percent",  # the largest share of the card of which more is free
    "fullness",  # 1..MILLION, more where more is promised than there is
)
Left = tuple[Any, Any, Any, Any, Any, Any]


class Load(NamedTuple):
    """What a task puts on each of its cards, and on its node. `claim`: percent of the card's memory;
    `promise`: percent that count for the commitment. `inference`: it is nothing else; `capped`: it counts for
    the node's inference cap. `many_at_once`: an engine over several cards (AGENT-06)."""

    claim: int
    promise: int
    inference: bool
    capped: bool
    many_at_once: bool
    host_network: bool


def load_of(task: TaskView, *, borrowed: bool = False) -> Load:
    """A borrower promises nothing, and who has no port is not counted (SHARE-04, SCHED-16)."""
    inference = task.task_type == TaskType.INFERENCE
    whole = task.whole_cards
    percent = 100 if whole or task.percent is None else task.percent
    promise = percent if task.counted or whole else 0
    many = inference and task.gpu_required > 1
    if borrowed:
        percent = promise = 0
    return Load(percent, promise, inference, task.counted and inference, many, task.host_network)


def higher(first: Any, second: Any) -> Any:
    """The larger of two, elementwise."""
    return first + (second - first) * (second > first)


def reckon(
    promised: Any,
    claims_mb: Any,
    foreign_mb: Any,
    used_mb: Any,
    total_mb: Any,
    reserve_mb: Any,
    known: Any,
    limit: int,
) -> Left:
    """What is left of a card where `promised` percent of it are; `limit` is how much may be (SCHED-05).

    `claims_mb`: per owner the larger of promise and measured use; `foreign_mb`: of strangers, 0 where nobody
    tells; `used_mb`: all that is measured; `known` 0 = total or use is not told. `total_mb` is 1 then.
    """
    # Strangers' memory counts, our own is not counted twice; where the driver does not tell whose it is, all
    # that is used stands against all that is promised (SCHED-04).
    left = higher(total_mb - higher(claims_mb + foreign_mb, used_mb), 0)
    unpromised_mb = (left + 1) * known - 1
    free_mb = higher(left - reserve_mb, 0) * known
    return (
        limit - promised,
        unpromised_mb,
        free_mb,
        ((unpromised_mb + 1) * 100 - 1) // total_mb,
        (unpromised_mb * 100 - 1) // total_mb,
        (promised * 10_000 + MILLION - free_mb * MILLION // total_mb) // 2 + 1,
    )


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
        promise = hold.promise
        claim = total_mb * promise // 100
        promised += promise
        measured = hold.measured_mb
        claims += claim if measured is None or measured < claim else measured
        other |= not hold.inference
    return Sum(promised, claims, other)
