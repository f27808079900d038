"""Which backend a call would get, and why not another, by the rules that choose it (GW-03, GW-04).

Pure. It judges each replica with what each gateway process says of it, and draws by `choose` itself, so that
nothing is told that would not happen. Moves no turn, counts no call.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from apps.gateway.plane.core.choice import Pins, Standing, View, choose, judge
from apps.gateway.plane.core.circuit import WORDS, Circuit, Verdict
from apps.gateway.plane.core.engine_load import EngineLoad
from apps.routing.load import BackendWord
from apps.routing.table import Replica, Route

DRAWS = 100  # for each process
_VERDICTS = {word: verdict for verdict, word in WORDS.items()}


class Seen(msgspec.Struct, frozen=True):
    """What one gateway process says of backends, by task id."""

    in_flight: Mapping[str, int] = {}
    words: Mapping[str, BackendWord] = {}


class ReplicaWord(msgspec.Struct, frozen=True):
    """`percent`: of such calls, as drawn; `standings`: how many processes judge it so, by the word."""

    replica: Replica
    percent: float
    standings: dict[str, int]


class RouteWord(msgspec.Struct, frozen=True):
    """`code`: why it gets what it gets, a word of `texts`."""

    route: Route
    percent: float
    code: str
    replicas: tuple[ReplicaWord, ...]


class _Told(Circuit):
    """A circuit as its process tells of it."""

    __slots__ = ("_verdict",)

    def __init__(self, attempt: int, verdict: Verdict) -> None:
        self.attempt = attempt
        self._verdict = verdict

    def verdict(self, now: float) -> Verdict:
        return self._verdict


def explain(
    routes: tuple[Route, ...],
    seen: Sequence[Seen],
    now: float,
    *,
    limit: int,
    load_fresh_s: float,
    pins: Pins,
    session: Callable[[str], str] | None = None,
) -> list[RouteWord]:
    """Every route in its order. `seen`: one a process, at least one; `now` in epoch seconds, by which loads
    of engines are judged. `limit`: calls at one replica, of each process."""
    drawn: Counter[tuple[str, str]] = Counter()
    standings: dict[tuple[str, str], Counter[str]] = {}
    for number, process in enumerate(seen):
        view = _view(routes, process, limit, load_fresh_s, random.Random(number))  # noqa: S311 - guards nothing
        for route in routes:
            for replica in route.replicas:
                word = _standing(route, replica, view, now, pins)
                standings.setdefault((route.route_id, replica.task_id), Counter())[word] += 1
        for _ in range(DRAWS):
            choice = choose(routes, view, now, pins=pins, session=session)
            if choice is not None:
                drawn[choice.route.route_id, choice.replica.task_id] += 1
    total = DRAWS * len(seen)
    return [_word(route, drawn, standings, total) for route in routes]


def _standing(route: Route, replica: Replica, view: View, now: float, pins: Pins) -> str:
    """As it is judged; one that has failed and is tried with one call does not take calls like others."""
    standing = judge(route, replica, view, now, pins=pins)
    circuit = None if pins.backend else view.circuits.get(replica.task_id)
    if standing is Standing.TAKES and circuit is not None and circuit.verdict(now) is Verdict.TRIAL:
        return "trial"
    return standing.name.lower()


def _word(
    route: Route,
    drawn: Mapping[tuple[str, str], int],
    standings: Mapping[tuple[str, str], Mapping[str, int]],
    total: int,
) -> RouteWord:
    replicas = tuple(
        ReplicaWord(
            one,
            round(100 * drawn.get((route.route_id, one.task_id), 0) / total, 1),
            dict(standings[route.route_id, one.task_id]),
        )
        for one in route.replicas
    )
    percent = round(sum(one.percent for one in replicas), 1)
    if replicas:
        code = "route_gets" if percent else "route_gets_none"
    elif route.dozing:
        code = "route_dozes"
    else:
        code = "route_sleeps" if route.asleep else "route_without_replica"
    return RouteWord(route, percent, code, replicas)


def _view(
    routes: tuple[Route, ...], process: Seen, limit: int, load_fresh_s: float, rng: random.Random
) -> View:
    attempts = {one.task_id: one.attempt for route in routes for one in route.replicas}
    words = {task_id: word for task_id, word in process.words.items() if task_id in attempts}
    return View(
        rng=rng,
        limit=limit,
        load_fresh_s=load_fresh_s,
        in_flight=process.in_flight,
        turns={},
        circuits={
            task_id: _Told(attempts[task_id], _VERDICTS[word.state])
            for task_id, word in words.items()
            if word.state in _VERDICTS and word.state != WORDS[Verdict.FREE]
        },
        hot={task_id for task_id, word in words.items() if word.hot_c is not None},
        loads={
            task_id: EngineLoad(word.running, word.waiting, word.kv_use, word.told_at)
            for task_id, word in words.items()
            if word.running is not None and word.waiting is not None and word.told_at is not None
        },
    )
