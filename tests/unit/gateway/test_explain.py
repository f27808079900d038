"""What a call would get is told by the rules that choose (GW-03, GW-04, GW-07, GW-08)."""

import msgspec
import pytest

from apps.gateway.plane.core.choice import NO_PINS, Pins
from apps.gateway.plane.core.explain import RouteWord, Seen, explain
from apps.routing.load import BackendWord
from apps.routing.table import Replica, Route
from tests.fakes.gateway import make_replica, make_route

pytestmark = pytest.mark.req("GW-03", "GW-04")


def tell(
    *routes: Route, seen: list[Seen] | None = None, pins: Pins = NO_PINS, session: str = ""
) -> list[RouteWord]:
    return explain(
        routes,
        seen or [Seen()],
        1000.0,
        limit=4,
        load_fresh_s=10.0,
        pins=pins,
        session=(lambda kind: session) if session else None,
    )


def replica(name: str, attempt: int = 1) -> Replica:
    return make_replica(1, name, attempt=attempt)


def route(name: str, *names: str, **changes: object) -> Route:
    return make_route(*(replica(one) for one in names), route_id=name, **changes)


def shares(words: list[RouteWord]) -> dict[str, float]:
    return {one.replica.task_id: one.percent for word in words for one in word.replicas}


def test_weights_and_reserve() -> None:
    first, second, reserve = tell(
        route("a", "a1", weight=75), route("b", "b1", weight=25), route("c", "c1", weight=0)
    )
    assert 55 < first.percent < 90 and first.percent + second.percent == 100
    assert (reserve.percent, reserve.code) == (0.0, "route_gets_none")
    assert reserve.replicas[0].standings == {"reserve": 1}
    assert [word.code for word in (first, second)] == ["route_gets"] * 2


def test_nothing_ready_is_said_as_it_is() -> None:
    dozes, sleeps = (
        msgspec.structs.replace(route("b"), dozing=True),
        msgspec.structs.replace(route("s"), asleep=True),
    )
    words = tell(route("a"), dozes, sleeps, route("c", "c1", priority=1))
    codes = ["route_without_replica", "route_dozes", "route_sleeps", "route_gets"]
    assert [word.code for word in words] == codes


def test_each_process_is_heard() -> None:
    """One could not reach the first replica, so its calls go to the other one."""
    shut = Seen(words={"a1": BackendWord(state="open", failures=5)})
    (word,) = tell(route("a", "a1", "a2", balancing="round_robin"), seen=[Seen(), shut])
    assert shares([word]) == {"a1": 25.0, "a2": 75.0}
    assert word.replicas[0].standings == {"takes": 1, "open": 1}


@pytest.mark.parametrize(
    ("word", "standing"),
    [
        (BackendWord(state="passed_over"), "passed_over"),
        (BackendWord(state="half_open"), "trial"),
        (BackendWord(hot_c=91), "hot"),
        (BackendWord(state="a state of a later version"), "takes"),
    ],
)
def test_what_stands_against_a_replica(word: BackendWord, standing: str) -> None:
    (told,) = tell(route("a", "a1", "a2"), seen=[Seen(words={"a1": word})])
    assert told.replicas[0].standings == {standing: 1}
    assert (shares([told])["a1"] > 0) == (standing in ("takes", "trial"))


def test_full_and_least_busy() -> None:
    (told,) = tell(route("a", "a1", "a2", "a3"), seen=[Seen({"a1": 4, "a2": 3, "a3": 2})])
    assert shares([told]) == {"a1": 0.0, "a2": 0.0, "a3": 100.0}
    assert told.replicas[0].standings == {"full": 1}


def test_an_engine_that_told_lately_is_compared_by_it() -> None:
    words = {
        "a1": BackendWord(running=9, waiting=9, kv_use=0.9, told_at=999.0),
        "a2": BackendWord(running=0, waiting=0, kv_use=0.0, told_at=999.0),
    }
    busy = {"a2": 1}
    one = route("a", "a1", "a2", balancing="engine_aware")
    assert shares(tell(one, seen=[Seen(busy, words)])) == {"a1": 0.0, "a2": 100.0}
    stale = {name: msgspec.structs.replace(word, told_at=900.0) for name, word in words.items()}
    assert shares(tell(one, seen=[Seen(busy, stale)])) == {"a1": 100.0, "a2": 0.0}


def test_a_session_stays_and_a_pin_leads() -> None:
    sticky = route("a", "a1", "a2", "a3", sticky="header")
    found = shares(tell(sticky, session="s-1"))
    assert sorted(found.values()) == [0.0, 0.0, 100.0]
    pinned = tell(route("a", "a1"), route("b", "b1", version="v2"), pins=Pins(version="v2"))
    assert shares(pinned) == {"a1": 0.0, "b1": 100.0}
    assert pinned[0].replicas[0].standings == {"not_pinned": 1}
