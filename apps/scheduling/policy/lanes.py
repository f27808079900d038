"""Columns as filters and scores read them: those of a stretch of nodes.

Owns the names of the columns and the views of them. One node or card has the same names (`one.py`,
`rooms.py`).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from apps.scheduling.policy.circles import Friends
    from apps.scheduling.policy.columns import Columns

Bools = NDArray[np.bool_]
Array = NDArray[Any]

# What one more card of a node that has fewer than others promises: nothing fits on it.
NO_CARD = 300
NO_CAP = 1 << 30

CARD_COLUMNS = {
    "promised": np.int64,
    "claims_mb": np.int64,
    "foreign_mb": np.int64,
    "used_mb": np.int64,
    "total_mb": np.int64,
    "reserve_mb": np.int64,
    "largest_promise": np.int16,
    "unpromised_mb": np.int32,
    "free_mb": np.int32,
    "free_percent": np.int16,
    "start_percent": np.int16,
    "fullness": np.int32,
    "rank": np.int32,
    "alone": np.bool_,
    "without_other": np.bool_,
    "model": np.int32,
}
# What is known of a card; most others are reckoned of it (`capacity.reckon`).
INPUTS = ("promised", "claims_mb", "foreign_mb", "used_mb", "total_mb", "reserve_mb")
# Those that a booking changes.
LIVE = (
    "promised",
    "claims_mb",
    "largest_promise",
    "unpromised_mb",
    "free_mb",
    "free_percent",
    "start_percent",
    "fullness",
    "rank",
    "alone",
    "without_other",
)
NODE_COLUMNS = {
    "cap_left": np.int32,
    "inference_cap": np.int32,
    "ports_left": np.int32,
    "port_first": np.int32,
    "port_last": np.int32,
    "tasks": np.int32,
    "begun": np.float64,
    "has_cards": np.bool_,
    "cpu_percent": np.float64,
    "memory_percent": np.float64,
    "disk_percent": np.float64,
    "load_known": np.bool_,
    "ipc_apart": np.bool_,
}


def count_cards(some: Bools) -> Array:
    """How many cards of each node are among them."""
    count: Array = np.add.reduce(some.view(np.int8), axis=0, dtype=np.int16)
    return count


class CardLanes:
    """The cards of a stretch of nodes: the columns of `Columns`, live where it is a slice."""

    def __init__(self, columns: "Columns", where: Any) -> None:
        self._columns = columns
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name not in CARD_COLUMNS:
            raise AttributeError(name)
        column, where = getattr(self._columns, name), self._where
        part = column.take(where, axis=1) if isinstance(where, np.ndarray) else column[:, where]
        setattr(self, name, part)
        return part

    def has_friends_only(self, friends: "Friends") -> Any:
        """Whether nobody but these tenants holds anything on it."""
        circles = self._columns.circles
        return circles.cards.only(circles.of(friends), self._where)


class NodeLanes:
    """A stretch of nodes, likewise."""

    def __init__(self, columns: "Columns", where: Any) -> None:
        self._columns = columns
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name not in NODE_COLUMNS:
            raise AttributeError(name)
        column = getattr(self._columns, name)[self._where]
        setattr(self, name, column)
        return column

    def has_friends_only(self, friends: "Friends") -> Any:
        """Whether nobody but these tenants lives there."""
        circles = self._columns.circles
        return circles.living.only(circles.of(friends), self._where)

    def is_wide_for_friends_only(self, friends: "Friends") -> Any:
        """Whether nobody but these tenants has the host's network or IPC there."""
        circles = self._columns.circles
        return circles.wide.only(circles.of(friends), self._where)

    def has_model(self, path: str) -> Any:
        """Whether the model lies there."""
        return self._columns.having("models", path, lambda node: node.models)[self._where]

    def has_image(self, image: str) -> Any:
        """Whether the image lies there."""
        return self._columns.having("images", image, lambda node: node.images)[self._where]

    def is_one_of(self, public_ids: frozenset[str]) -> Any:
        """Whether it is named among these."""
        named: Bools = np.zeros(self._columns.count, np.bool_)
        for public_id in public_ids:
            named[self._columns.places_of("public_id", public_id, lambda node: (node.public_id,))] = True
        return named[self._where]

    def has_free(self, port: int) -> Any:
        """Whether the host port is free there."""
        return self._columns.ports_free(port)[self._where]


class Chosen:
    """The cards that a task would get, as one: `fullness` 0..1 of them together; `closeness` 1 where they are
    joined, 0.5 on one PCIe root, else 0. Of many nodes both are the most that they can be."""

    __slots__ = ("closeness", "fullness")

    def __init__(self, fullness: Any, closeness: Any) -> None:
        self.fullness = fullness
        self.closeness = closeness
