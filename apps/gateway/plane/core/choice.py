"""Which route and which replica serve a call (GW-03, GW-04).

Pure: counts, turns and the random source belong to the caller. Never decides whether a replica
is healthy; the table lists ready ones only, `avoid` adds what this process has just seen fail.
"""

import random
from collections.abc import Collection, Mapping, MutableMapping
from enum import StrEnum

import msgspec

from apps.routing.table import Replica, Route


class Choice(msgspec.Struct, frozen=True):
    route: Route
    replica: Replica


class Pins(msgspec.Struct, frozen=True):
    """What a caller's headers say of the backend: the route's version, the replica's task id, and the name of
    the session that its calls belong to. "" = says nothing."""

    version: str = ""
    backend: str = ""
    session: str = ""


NO_PINS = Pins()


class Failure(StrEnum):
    """How a replica failed a call. What the caller did wrong, and an engine's 4xx, is none of these."""

    REFUSED = "refused"  # no connection came about
    CLOSED = "closed"  # the connection ended before any byte of a response
    BROKEN = "broken"  # it ended in the middle of one, or what came was not HTTP
    TIMEOUT = "timeout"  # one of the engine's deadlines passed
    ERROR = "error"  # the engine answered with 5xx


def choose(
    routes: tuple[Route, ...],
    *,
    in_flight: Mapping[str, int],
    turns: MutableMapping[str, int],
    rng: random.Random,
    avoid: Collection[str] = (),
    limit: int | None = None,
) -> Choice | None:
    """One route and one replica of it, or None when no route has a usable replica.

    `in_flight` and `avoid` go by task id; `turns` (by route id) is moved on by round_robin.
    Avoided replicas are taken only when nothing else is left; replicas with `limit` calls in
    flight are never taken.
    """
    usable = [
        (route, replicas)
        for route in routes
        if (replicas := [r for r in route.replicas if limit is None or in_flight.get(r.task_id, 0) < limit])
    ]
    fresh = [
        (route, kept)
        for route, replicas in usable
        if (kept := [r for r in replicas if r.task_id not in avoid])
    ]
    candidates = fresh or usable
    if not candidates:
        return None
    route, replicas = _pick_route(candidates, rng)
    return Choice(route, _pick_replica(route, replicas, in_flight, turns, rng))


def _pick_route(
    candidates: list[tuple[Route, list[Replica]]], rng: random.Random
) -> tuple[Route, list[Replica]]:
    """Lowest priority number first, by weight inside it; weight 0 only when nothing else can."""
    weighted = [candidate for candidate in candidates if candidate[0].weight > 0] or candidates
    first = min(route.priority for route, _ in weighted)
    level = [candidate for candidate in weighted if candidate[0].priority == first]
    if len(level) == 1:
        return level[0]
    weights = [route.weight for route, _ in level]
    if not any(weights):
        return rng.choice(level)
    return rng.choices(level, weights)[0]


def _pick_replica(
    route: Route,
    replicas: list[Replica],
    in_flight: Mapping[str, int],
    turns: MutableMapping[str, int],
    rng: random.Random,
) -> Replica:
    if len(replicas) == 1:
        return replicas[0]
    if route.balancing == "random":
        return rng.choice(replicas)
    if route.balancing == "round_robin":
        turn = turns.get(route.route_id, 0)
        turns[route.route_id] = turn + 1
        return replicas[turn % len(replicas)]
    # least_connections, and whatever name this version doesn't know: the safest of the three.
    least = min(in_flight.get(replica.task_id, 0) for replica in replicas)
    return rng.choice([r for r in replicas if in_flight.get(r.task_id, 0) == least])
