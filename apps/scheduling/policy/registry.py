"""The one list of filters and scores, in their order (SCHED-03).

A plugin is a file in `filters/` or `scores/`; adding one touches that file alone. Each is one elementwise
expression: it is given one node (or card) with numbers, or many with arrays, and answers a truth (or a
number) or an array of them. So it never says `not`, `and`, `or` about what it is given, but `^ True`, `&`,
`|`. Of the task (`Ask`) it may ask anything but whether one of its numbers (`ask.NUMBERS`) is this or that:
those may be arrays, too.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from agent.contract.codes import Code

Value = str | int | float | bool | None


class Of(Enum):
    """What a filter looks at, one at a time. Facts do not change while one decision is made, and are asked
    once for all nodes or cards that have the same (`facts.py`)."""

    NODE_FACTS = "node facts"
    NODE = "node"
    CARD_FACTS = "card facts"
    CARD = "card"
    CARDS = "cards"  # all of a node together: (ask, their models, which are left) -> which stay


OF_CARDS = (Of.CARD_FACTS, Of.CARD, Of.CARDS)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a node does not take a task. `shortfall` says by how much (0 = it is no matter of much);
    over many nodes the nearest miss is told."""

    code: Code
    params: dict[str, Value] = field(default_factory=dict)
    shortfall: float = 0.0


def _always(_: Any) -> bool:
    return True


def no_numbers(*_: Any) -> Mapping[str, Value]:
    """Of a refusal that is no matter of numbers."""
    return {}


@dataclass(frozen=True, slots=True)
class Filter:
    """`fits(ask, thing)`. `empties`: it refuses a node only when it leaves no card at all; any other filter
    of cards does when fewer are left than the task needs. `applies(ask)`: whether it is asked for the task.
    `covered`: another one refuses all that this does; it is asked only to tell why. `fixed`: its answer
    depends on no task and no booking.
    `short(ask, thing)`: by how much it is missed, elementwise. `tell(ask, node, card, left)`: the numbers of
    a refusal, of one node and its nearest card (None = a filter of nodes) with `left` cards staying."""

    name: str
    order: int
    code: Callable[[Any], Code]
    of: Of
    fits: Callable[..., Any]
    empties: bool
    covered: bool
    fixed: bool
    applies: Callable[[Any], bool]
    short: Callable[[Any, Any], Any] | None
    tell: Callable[..., Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Score:
    """`measure(ask, node, chosen)` answers 0..1, elementwise; the cards chosen come as one. `applies(ask)`:
    whether it has a word to say about the task. `where(ask, columns)`: a score that reads the task's model
    and is 0 on most nodes tells on which it is not; others do not read the model. `rise(ask, cards)`: by how
    much the booking of one such task may raise it at most, on a node of so many cards or more."""

    name: str
    measure: Callable[[Any, Any, Any], Any]
    applies: Callable[[Any], bool]
    where: Callable[[Any, Any], Any] | None
    rise: Callable[[Any, int], float]


@dataclass(frozen=True, slots=True)
class Company:
    """A preference that looks at who else is there: `measure(task, node, beside)` answers 0..1 for one node
    and is 1 where nobody is. `beside`: the nodes that hold others of its gang; `gang`: it speaks of gangs
    only."""

    name: str
    measure: Callable[[Any, Any, Any], float]
    gang: bool


_filters: dict[str, Filter] = {}
_scores: dict[str, Score] = {}
_companies: dict[str, Company] = {}


def named(node: Any, card: Any) -> dict[str, Value]:
    """Which card of which node a refusal tells of."""
    return {"node": node.view.name, "card": card.view.index}


def filter_plugin(
    name: str,
    *,
    order: int,
    code: Code | Callable[[Any], Code],
    of: Of,
    empties: bool = False,
    covered: bool = False,
    fixed: bool = False,
    applies: Callable[[Any], bool] = _always,
    short: Callable[[Any, Any], Any] | None = None,
    tell: Callable[..., Mapping[str, Value]] = no_numbers,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a filter; a lower `order` is asked first. The fields are those of `Filter`."""

    def register(fits: Callable[..., Any]) -> Callable[..., Any]:
        of_ask = (lambda _: code) if isinstance(code, Code) else code
        _filters[name] = Filter(name, order, of_ask, of, fits, empties, covered, fixed, applies, short, tell)
        return fits

    return register


def score_plugin(
    name: str,
    *,
    applies: Callable[[Any], bool] = _always,
    where: Callable[[Any, Any], Any] | None = None,
    rise: Callable[[Any, int], float] = lambda *_: 0.0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a score."""

    def register(measure: Callable[..., Any]) -> Callable[..., Any]:
        _scores[name] = Score(name, measure, applies, where, rise)
        return measure

    return register


def company_plugin(
    name: str, *, gang: bool = False
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register a preference about company."""

    def register(measure: Callable[..., float]) -> Callable[..., float]:
        _companies[name] = Company(name, measure, gang)
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


def load_companies() -> tuple[Company, ...]:
    """All preferences about company, by name."""
    _import_all("scores")
    return tuple(sorted(_companies.values(), key=lambda plugin: plugin.name))


@cache
def _import_all(folder: str) -> None:
    package = importlib.import_module(f"{__package__}.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
