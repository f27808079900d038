"""Tasks that start together are placed together, all or none (SCHED-02, -13).

Owns finding places for all of a gang, in one zone where one has room for it. Holds nothing for a gang that
does not fit: it waits, and the room it would have had goes on to those after it (SCHED-10).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from apps.scheduling.policy.board import Board
from apps.scheduling.policy.fairness import Unit
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.shapes import Alike, alike
from apps.scheduling.policy.snapshot import TaskView

ZONES_TRIED = 8

Kinds = frozenset[tuple[Alike, int]]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one task of a gang was booked; `ports` are (container port, host port)."""

    task: TaskView
    place: int
    cards: tuple[int, ...]
    ports: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GangShort:
    """A gang that does not fit: of `wanted` tasks at most `found` would have had a place at once. `stuck` is
    the first one that had none; None = some of the gang are not there to be placed."""

    wanted: int
    found: int
    stuck: TaskView | None


class Gangs:
    """Places gangs in one decision."""

    def __init__(self, board: Board) -> None:
        self._board = board
        # Room only shrinks in a decision: what did not fit once does not fit again.
        self._short: dict[Kinds, GangShort] = {}

    def place(self, unit: Unit) -> list[Stand] | GangShort:
        """Book every task of a gang, in the order of ranks, or none."""
        wanted = max(unit[0].gang_size, len(unit))
        if len(unit) < wanted:
            return GangShort(wanted, len(unit), None)
        kinds = frozenset(Counter(alike(task, self._board) for task in unit).items())
        known = self._short.get(kinds)
        if known is not None:
            return known
        # Who asks for most chooses first; on the way back the order is that of the ranks.
        order = sorted(unit, key=lambda task: (-task.gpu_required, -len(task.ports), task.rank, task.id))
        found = self._in_one_zone(order) or self._anywhere(order, wanted)
        if isinstance(found, GangShort):
            self._short[kinds] = found
            return found
        return sorted(found, key=lambda stand: (stand.task.rank, stand.task.id))

    def _in_one_zone(self, order: list[TaskView]) -> list[Stand]:
        nodes = self._board.nodes
        zones = list(dict.fromkeys(nodes[place].zone for place in self._board.ranked(order[0])))
        if len(zones) < 2:
            return []
        for zone in [zone for zone in zones if zone][:ZONES_TRIED]:
            found = self._try(order, zone)
            if len(found) == len(order):
                return found
            self._take_back(found)
        return []

    def _anywhere(self, order: list[TaskView], wanted: int) -> list[Stand] | GangShort:
        """The tasks one after another; one that found nothing goes first in the next try, for its siblings
        may have taken what only it can use."""
        most = -1
        stuck = order[0]
        tried = set()
        for _ in order:
            found = self._try(order, None)
            if len(found) == len(order):
                return found
            self._take_back(found)
            if len(found) > most:
                most, stuck = len(found), order[len(found)]
            first = order[len(found)]
            kind = alike(first, self._board)
            if kind in tried:
                break
            tried.add(kind)
            order = [first, *(task for task in order if task is not first)]
        return GangShort(wanted, most, stuck)

    def _try(self, order: list[TaskView], zone: str | None) -> list[Stand]:
        """Book as many as find a place, up to the first that does not."""
        stands: list[Stand] = []
        for task in order:
            places = self._board.ranked(task, beside=[stand.place for stand in stands])
            stand = self._stand(task, places, zone)
            if stand is None:
                break
            stands.append(stand)
        return stands

    def _stand(self, task: TaskView, places: Iterable[int], zone: str | None) -> Stand | None:
        for place in places:
            if zone is not None and self._board.nodes[place].zone != zone:
                continue
            cards = self._board.judge(task, place)
            if not isinstance(cards, Refused):
                return Stand(task, place, cards, self._board.take(task, place, cards))
        return None

    def _take_back(self, stands: list[Stand]) -> None:
        self._board.undo(self._board.mark() - len(stands))
