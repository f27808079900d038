"""The figures of a replay, as plain values for JSON: placements, utilisation, waits, refusals, and the rest.

Owns the arithmetic. Equal records give equal reports, so no clock and no host stands in one.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apps.scheduling.simulation.fleet import Fleet
from apps.scheduling.simulation.occupancy import Occupancy, Use
from apps.scheduling.simulation.record import Ended, Record, Stay
from apps.scheduling.simulation.workload import Item, Workload

SPANS = 24  # of the time line

Values = dict[str, Any]


def report(fleet: Fleet, workload: Workload, record: Record, places: Occupancy) -> Values:
    """All figures. Times in seconds, memory in MB; a share that nothing can be said of is None."""
    last = {stay.stand.item.id: stay for stay in record.stays}
    return {
        "fleet": {
            "about": fleet.about,
            "nodes": len(fleet.machines),
            "cards": int(places.all.cards.whole),
            "memory_mb": int(places.all.memory_mb.whole),
        },
        "workload": {"about": workload.about, "seed": workload.seed, "tasks": len(workload.items)},
        "until_s": _round(record.until_s),
        "decisions": record.decisions,
        "tasks": _outcomes(workload.items, last, record),
        "waits": {
            "all": _waits(workload.items, record),
            "by_priority": _waits_by(lambda item: item.work.priority, workload.items, record, reverse=True),
            "by_tenant": _waits_by(lambda item: item.work.tenant, workload.items, record),
        },
        "utilisation": {
            "all": _use(places.all, record.until_s),
            "by_model": {model: _use(use, record.until_s) for model, use in places.by_model.items()},
            "by_pool": {pool: _use(use, record.until_s) for pool, use in places.by_pool.items() if pool},
            "over_time": _over_time(record, places.all),
        },
        "refusals": _refusals(record),
        "preemptions": [
            {
                "at_s": _round(made.at_s),
                "for": made.task.name,
                "priority": made.task.work.priority,
                "node": places.name(made.node),
                "cards": [places.card(card).index for card in made.cards],
                "victims": [
                    {"task": victim.name, "priority": victim.work.priority} for victim in made.victims
                ],
            }
            for made in record.evictions
        ],
        "loans": [
            {
                "at_s": _round(loan.since_s),
                "until_s": _round(loan.until_s),
                "ended_s": _round(loan.ended_s),
                "lender": loan.lender.item.name,
                "borrower": loan.borrower.item.name,
                "node": places.name(loan.lender.node),
                "card": places.card(loan.card).index,
            }
            for loan in places.loans
        ],
        "wakes_after_loans": _spread(record.wakes),
        "placements": [_placement(stay, places) for stay in record.stays],
        "waiting": [
            {
                "task": one.item.name,
                "since_s": _round(one.since_s),
                "reasons": [{"code": str(why.code), "params": why.params} for why in one.reasons],
            }
            for _, one in sorted(record.waiting.items())
        ],
    }


def _outcomes(items: Iterable[Item], last: dict[int, Stay], record: Record) -> Values:
    arrived = [item for item in items if item.at_s <= record.until_s]
    stands = [last[item.id].stand for item in arrived if item.id in last and item.id not in record.waiting]
    left = [last[stand.item.id].ended for stand in stands]
    return {
        "arrived": len(arrived),
        "ever_placed": len(last),
        "finished": sum(ended == Ended.FINISHED for ended in left),
        "running": sum(
            ended == Ended.STANDS and not stand.sleeping for ended, stand in zip(left, stands, strict=True)
        ),
        "sleeping": sum(
            ended == Ended.STANDS and stand.sleeping for ended, stand in zip(left, stands, strict=True)
        ),
        "waiting": len(record.waiting),
        "placements": len(record.stays),
        "ended_early": {
            why.value: sum(stay.ended == why for stay in record.stays)
            for why in (Ended.PREEMPTED, Ended.LOAN_ENDED, Ended.NODE_LOST)
        },
    }


def _waits_by(
    key: Callable[[Item], Any], items: Iterable[Item], record: Record, *, reverse: bool = False
) -> Values:
    kinds: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        kinds[key(item)].append(item)
    return {str(kind): _waits(kinds[kind], record) for kind in sorted(kinds, reverse=reverse)}


def _waits(items: Sequence[Item], record: Record) -> Values:
    """How long tasks waited for their first place, and how long those wait by now that have none."""
    ids = {item.id for item in items}
    first: dict[int, float] = {}
    for stay in record.stays:
        if stay.stand.item.id in ids:
            first.setdefault(stay.stand.item.id, stay.wait_s)
    never = [
        record.until_s - one.since_s
        for one in record.waiting.values()
        if one.item.id in ids and one.item.id not in first
    ]
    return {
        **_spread(first.values()),
        "never_placed": len(never),
        "longest_by_now_s": _round(max(never, default=None)),
    }


def _spread(waits: Iterable[float]) -> Values:
    """By the nearest rank: each figure is one that occurred."""
    some = sorted(waits)

    def rank(percent: int) -> float | None:
        return _round(some[math.ceil(len(some) * percent / 100) - 1]) if some else None

    return {"tasks": len(some), "p50_s": rank(50), "p95_s": rank(95), "most_s": rank(100)}


def _use(use: Use, until_s: float) -> Values:
    return {
        "cards": int(use.cards.whole),
        "cards_percent": _round(use.cards.mean_percent(until_s)),
        "memory_percent": _round(use.memory_mb.mean_percent(until_s)),
    }


def _over_time(record: Record, use: Use) -> list[Values]:
    """Means over equal spans of time."""
    if not record.until_s:
        return []
    width = record.until_s / SPANS
    sums = [[0.0, 0.0, 0.0] for _ in range(SPANS)]
    ends = [*(moment.at_s for moment in record.moments[1:]), record.until_s]
    for moment, end in zip(record.moments, ends, strict=True):
        first, last = (min(SPANS - 1, int(at_s / width)) for at_s in (moment.at_s, end))
        for number in range(first, last + 1):
            seconds = max(0.0, min(end, (number + 1) * width) - max(moment.at_s, number * width))
            for place, value in enumerate((moment.cards, moment.memory_mb, moment.waiting)):
                sums[number][place] += value * seconds
    return [
        {
            "from_s": _round(number * width),
            "to_s": _round((number + 1) * width),
            "cards_percent": _percent(cards / width, use.cards.whole),
            "memory_percent": _percent(memory_mb / width, use.memory_mb.whole),
            "waiting": _round(waiting / width),
        }
        for number, (cards, memory_mb, waiting) in enumerate(sums)
    ]


def _refusals(record: Record) -> list[Values]:
    still = {
        code: sum(1 for one in record.waiting.values() if any(why.code == code for why in one.reasons))
        for code in record.refusals
    }
    return [
        {
            "code": str(code),
            "tasks": len(refusal.tasks),
            "waiting": still[code],
            "example": {
                "task": refusal.task.name,
                "at_s": _round(refusal.at_s),
                "params": refusal.reason.params,
            },
        }
        for code, refusal in sorted(record.refusals.items(), key=lambda pair: (-len(pair[1].tasks), pair[0]))
    ]


def _placement(stay: Stay, places: Occupancy) -> Values:
    stand = stay.stand
    return {
        "task": stand.item.name,
        "attempt": stand.attempt,
        "at_s": _round(stand.since_s),
        "wait_s": _round(stay.wait_s),
        "node": places.name(stand.node),
        "cards": [places.card(card).index for card in stand.cards],
        "percent": stand.percent,
        "borrowed": stand.borrowed,
        "until_s": _round(stay.until_s),
        "ended": stay.ended.value,
    }


def _percent(value: float, whole: float) -> float | None:
    return _round(100 * value / whole) if whole else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
