"""The one list of filters and scores, in their order (SCHED-03).

A plugin is a file in `filters/` or `scores/` that registers one function; adding one touches that
file alone. `order` says where a filter stands: cheap and telling ones first.

A filter takes (task, node, cards left by now, snapshot) and answers the cards that stay, or
Refused. A score answers 0..1 for the cards chosen; a `by_group` one also depends on the task's
group and must be highest where the node holds none of that group.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.snapshot import Snapshot, TaskView

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a node does not take a task. `shortfall` says by how much (0 = it is no matter of much);
    over many nodes the nearest miss is told."""

    code: Code
    params: dict[str, Value] = field(default_factory=dict)
    shortfall: float = 0.0


Check = Callable[[TaskView, NodeRoom, list[CardRoom], Snapshot], "list[CardRoom] | Refused"]
Measure = Callable[[TaskView, NodeRoom, list[CardRoom]], float]


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    order: int
    check: Check


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    measure: Measure
    by_group: bool


_filters: dict[str, Filter] = {}
_scores: dict[str, Score] = {}


def filter_plugin(name: str, *, order: int) -> Callable[[Check], Check]:
    """Register a filter; a lower `order` is asked first."""

    def register(check: Check) -> Check:
        _filters[name] = Filter(name, order, check)
        return check

    return register


def score_plugin(name: str, *, by_group: bool = False) -> Callable[[Measure], Measure]:
    """Register a score."""

    def register(measure: Measure) -> Measure:
        _scores[name] = Score(name, measure, by_group)
        return measure

    return register


def load_filters() -> tuple[Filter, ...]:
    """All filters, in the order in which they are asked."""
    _import_all("filters")
    return tuple(sorted(_filters.values(), key=lambda plugin: (plugin.order, plugin.name)))


def load_scores() -> tuple[Score, ...]:
    """All scores, by name."""
    _import_all("scores")
    return tuple(sorted(_scores.values(), key=lambda plugin: plugin.name))


@cache
def _import_all(folder: str) -> None:
    package = importlib.import_module(f"{__package__}.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
