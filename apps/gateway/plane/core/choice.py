"""Which route and which replica serve a call, and why not another (GW-03, GW-04, GW-06, GW-07).

Pure: counts, turns, circuits, temperatures and the random source belong to the caller. Never decides whether
a replica is ready: the table lists ready ones only, of routes that are on.
"""

import math
import random
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from enum import IntEnum

import msgspec

from apps.gateway.plane.core.circuit import Circuit, Failure, Verdict
from apps.gateway.plane.core.engine_load import EngineLoad, weigh
from apps.gateway.plane.core.stickiness import pick_sticky
from apps.routing.table import Replica, Route

__all__ = ["NO_PINS", "Choice", "Failure", "Pins", "Standing", "View", "choose", "is_told", "judge"]


class Choice(msgspec.Struct):
    """`trial`: this call tries a replica that has failed before; `tenant_id`: whose call it is. Both are set
    by whoever counts the call there."""

    route: Route
    replica: Replica
    trial: bool = False
    tenant_id: str = ""


class Pins(msgspec.Struct, frozen=True):
    """What a caller's headers say of the backend: the route's version, the replica's task id, and the name of
    the session that its calls belong to. "" = says nothing."""

    version: str = ""
    backend: str = ""
    session: str = ""


NO_PINS = Pins()


class Standing(IntEnum):
    """How a replica of a route stands to a call. The lower the better; from OPEN on it can't have it."""

    TAKES = 0
    HOT = 1  # on a card above the limit
    RESERVE = 2  # the route has weight 0
    HOT_RESERVE = 3
    PASSED_OVER = 4  # it has failed
    PASSED_OVER_RESERVE = 5
    OPEN = 6  # it has failed so that nobody should wait for it
    FULL = 7  # it has as many calls as it may have
    TRIED = 8  # it has failed this very call
    NOT_PINNED = 9  # the caller asked for another version or backend


class View(msgspec.Struct):
    """What one process knows of backends, by task id (`turns` by route id). `hot`: those on a card above the
    limit; one whose temperature nobody told is not. `loads`: what engines said of themselves."""

    rng: random.Random
    limit: float = math.inf  # calls at one replica
    load_fresh_s: float = 0.0
    in_flight: Mapping[str, int] = {}
    turns: MutableMapping[str, int] = {}
    circuits: Mapping[str, Circuit] = {}
    hot: Collection[str] = ()
    loads: Mapping[str, EngineLoad] = {}


def judge(
    route: Route,
    replica: Replica,
    view: View,
    now: float,
    *,
    tried: Collection[str] = (),
    pins: Pins = NO_PINS,
) -> Standing:
    """How one replica stands. `now`: seconds of the clock of the circuits. A backend that is pinned is judged
    by its room alone: a tester wants that one, as it is."""
    task_id = replica.task_id
    if (pins.version and pins.version != route.version) or (pins.backend and pins.backend != task_id):
        return Standing.NOT_PINNED
    if task_id in tried:
        return Standing.TRIED
    if view.in_flight.get(task_id, 0) >= view.limit:
        return Standing.FULL
    reserve = route.weight <= 0
    if pins.backend:
        return Standing.RESERVE if reserve else Standing.TAKES
    if view.circuits:
        circuit = view.circuits.get(task_id)
        if circuit is not None and circuit.attempt == replica.attempt:
            verdict = circuit.verdict(now)
            if verdict is Verdict.OPEN:
                return Standing.OPEN
            if verdict is Verdict.PASSED:
                return Standing.PASSED_OVER_RESERVE if reserve else Standing.PASSED_OVER
    if task_id in view.hot:
        return Standing.HOT_RESERVE if reserve else Standing.HOT
    return Standing.RESERVE if reserve else Standing.TAKES


def choose(
    routes: tuple[Route, ...],
    view: View,
    now: float,
    *,
    tried: Collection[str] = (),
    pins: Pins = NO_PINS,
    session: Callable[[str], str] | None = None,
) -> Choice | None:
    """One route and one replica of it, or None when no route has a usable replica.

    The best standing decides first, over all routes; then the lowest priority number, then the routes'
    weights, then the route's balancing. `session` names the session for a route's kind of stickiness, "" =
    there is none. Moves on `view.turns`.
    """
    if len(routes) == 1 and not (tried or view.circuits or view.hot or pins.version or pins.backend):
        route = routes[0]
        if not route.sticky and route.balancing == "least_connections":  # nearly every call
            least = _least_busy(route.replicas, view)
            return None if least is None else Choice(route, least)
    if tried or pins.version or pins.backend or _is_any_marked(routes, view):
        level = _best_level(routes, view, now, tried, pins)
    else:
        level = _calm_level(routes, view)
    if not level:
        return None
    route, replicas = level[0] if len(level) == 1 else _pick_route(level, view.rng, session)
    if len(replicas) == 1:
        return Choice(route, replicas[0])
    if route.sticky and session is not None and (name := session(route.sticky)):
        return Choice(route, replicas[pick_sticky(name, [(r.task_id, r.attempt) for r in replicas])])
    return Choice(route, _pick_replica(route, replicas, view, now))


Level = list[tuple[Route, list[Replica]]]
"""Routes of one priority with those of their replicas that stand equally well."""


def _is_any_marked(routes: tuple[Route, ...], view: View) -> bool:
    circuits, hot = view.circuits, view.hot
    if not circuits and not hot:
        return False
    return any(one.task_id in circuits or one.task_id in hot for route in routes for one in route.replicas)


def _calm_level(routes: tuple[Route, ...], view: View) -> Level:
    """What `_best_level` finds where no replica has failed, is hot or is asked for by name: nearly always."""
    in_flight, limit = view.in_flight, view.limit
    for reserve in (False, True):
        level: Level = []
        for route in routes:
            if (route.weight <= 0) is not reserve or (level and route.priority > level[0][0].priority):
                continue
            kept = [one for one in route.replicas if in_flight.get(one.task_id, 0) < limit]
            if kept:
                if level and route.priority < level[0][0].priority:
                    level = []
                level.append((route, kept))
        if level:
            return level
    return []


def _best_level(
    routes: tuple[Route, ...], view: View, now: float, tried: Collection[str], pins: Pins
) -> Level:
    best: tuple[int, int] = (Standing.OPEN, 0)
    level: Level = []
    for route in routes:
        for replica in route.replicas:
            rank = (judge(route, replica, view, now, tried=tried, pins=pins), route.priority)
            if rank[0] >= Standing.OPEN or rank > best:
                continue
            if rank < best:
                best, level = rank, []
            if not level or level[-1][0] is not route:
                level.append((route, []))
            level[-1][1].append(replica)
    return level


def is_told(load: EngineLoad | None, now: float, fresh_s: float) -> bool:
    """Whether a load may be compared: it was told, and not too long ago."""
    return load is not None and now - load.at <= fresh_s


def _pick_route(
    level: Level, rng: random.Random, session: Callable[[str], str] | None
) -> tuple[Route, list[Replica]]:
    """By weight; a session's calls by the same draw, where any of the routes keeps sessions together."""
    kind = next((route.sticky for route, _ in level if route.sticky), "")
    if kind and session is not None and (name := session(kind)):
        weights = [route.weight for route, _ in level]
        return level[pick_sticky(name, [(route.route_id, 0) for route, _ in level], weights)]
    total = sum(route.weight for route, _ in level)
    if total <= 0:
        return rng.choice(level)
    drawn = rng.random() * total
    for candidate in level:
        drawn -= candidate[0].weight
        if drawn < 0:
            return candidate
    return level[-1]


def _pick_replica(route: Route, replicas: list[Replica], view: View, now: float) -> Replica:
    rng = view.rng
    if route.balancing == "random":
        return rng.choice(replicas)
    if route.balancing == "round_robin":
        turn = view.turns.get(route.route_id, 0)
        view.turns[route.route_id] = turn + 1
        return replicas[turn % len(replicas)]
    counts: Sequence[float] | None = None
    if route.balancing == "engine_aware":
        counts = _weigh_all(replicas, view, now)
    if counts is None:
        # least_connections, whatever name this version doesn't know, and engine_aware while an engine is
        # silent: what is known of some can't be compared with what is not known of another.
        return _least_busy(replicas, view) or replicas[0]
    least = min(counts)
    if counts.count(least) == 1:
        return replicas[counts.index(least)]
    return rng.choice([one for one, count in zip(replicas, counts, strict=True) if count == least])


def _least_busy(replicas: Sequence[Replica], view: View) -> Replica | None:
    """The one with the fewest calls of this process, of several by lot; None where each has all it may."""
    in_flight, fewest, found, alike = view.in_flight, view.limit, None, 0
    for one in replicas:
        calls = in_flight.get(one.task_id, 0)
        if calls < fewest:
            fewest, found, alike = calls, one, 1
        elif alike and calls == fewest:
            alike += 1
            if view.rng.random() * alike < 1:
                found = one
    return found


def _weigh_all(replicas: list[Replica], view: View, now: float) -> list[float] | None:
    """None while an engine has never told its load, or not lately."""
    loads = [view.loads.get(replica.task_id) for replica in replicas]
    told = [load for load in loads if load is not None and is_told(load, now, view.load_fresh_s)]
    if len(told) < len(replicas):
        return None
    with_kv = all(load.kv_use is not None for load in told)
    return [
        weigh(load, view.in_flight.get(replica.task_id, 0), with_kv=with_kv)
        for load, replica in zip(told, replicas, strict=True)
    ]
