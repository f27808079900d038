"""Which route and replica serve a call: priorities, weights, pins, failures, heat, balancing, sessions."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.choice import Pins, Standing, View, choose, judge
from apps.gateway.plane.core.circuit import Circuit, Failure
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.engine_load import EngineLoad
from apps.routing.table import Replica, Route
from tests.fakes.gateway import make_replica, make_route

A, B, C, D = (make_replica(1, name) for name in "abcd")
CONFIG = GatewayConfig()


def make_view(seed: int = 1, **fields: object) -> View:
    return View(rng=random.Random(seed), **fields)


def pick(
    *routes: Route, view: View | None = None, now: float = 0.0, **more: object
) -> tuple[str, str] | None:
    choice = choose(routes, view or make_view(), now, **more)
    return None if choice is None else (choice.route.route_id, choice.replica.task_id)


def failed(*replicas: Replica, times: int = 1) -> dict[str, Circuit]:
    """Circuits of replicas that refused so many connections at second 0."""
    circuits = {replica.task_id: Circuit(replica.attempt, CONFIG) for replica in replicas}
    for circuit in circuits.values():
        for _ in range(times):
            circuit.fail(Failure.REFUSED, 0.0)
    return circuits


# ---- priorities and weights ----


@pytest.mark.req("GW-03")
def test_lowest_priority_number_with_a_replica() -> None:
    low = make_route(route_id="low", priority=0)
    high = make_route(A, route_id="high", priority=5)
    higher = make_route(B, route_id="higher", priority=9)
    assert pick(higher, low, high) == ("high", "a")
    assert pick(low) is None
    assert pick() is None


@pytest.mark.req("GW-03")
def test_weight_shares_and_zero_waits() -> None:
    routes = (
        make_route(A, route_id="one", weight=10),
        make_route(B, route_id="three", weight=30, version="canary"),
        make_route(C, route_id="reserve", weight=0),
    )
    view = make_view(7)
    counts = Counter(choose(routes, view, 0.0).route.route_id for _ in range(4000))
    assert counts["reserve"] == 0
    assert 2.6 < counts["three"] / counts["one"] < 3.4
    assert pick(make_route(route_id="empty", weight=10), routes[2]) == ("reserve", "c")
    # Weight 0 waits even for routes of a worse priority.
    assert pick(routes[2], make_route(A, route_id="later", priority=9, weight=1)) == ("later", "a")
    assert {
        pick(make_route(A, weight=0), make_route(B, weight=0), view=make_view(n))[1] for n in range(20)
    } == {
        "a",
        "b",
    }


@pytest.mark.req("GW-03", "GW-08")
def test_the_reserve_is_taken_before_what_has_failed_and_after_what_is_hot() -> None:
    first, reserve = make_route(A, route_id="first"), make_route(B, route_id="reserve", weight=0)
    assert pick(first, reserve, view=make_view(circuits=failed(A))) == ("reserve", "b")
    assert pick(first, reserve, view=make_view(hot={"a"})) == ("first", "a")
    assert pick(first, reserve, view=make_view(circuits=failed(A, B))) == ("first", "a")


# ---- failures, heat, room ----


@pytest.mark.req("GW-08")
def test_what_has_failed_waits_for_others_and_what_is_open_is_never_taken() -> None:
    first, second = make_route(A, route_id="first"), make_route(B, route_id="second", priority=3)
    passed_over, opened = failed(A), failed(A, times=3)
    assert pick(first, second, view=make_view(circuits=passed_over)) == ("second", "b")
    assert pick(first, view=make_view(circuits=passed_over)) == ("first", "a")
    assert pick(first, view=make_view(circuits=opened)) is None
    assert pick(first, second, view=make_view(circuits=opened)) == ("second", "b")
    # Another attempt is another replica.
    assert pick(make_route(make_replica(1, "a", attempt=2)), view=make_view(circuits=opened)) == ("mr-a", "a")


@pytest.mark.req("GW-07")
def test_hot_cards_get_no_call_while_others_can() -> None:
    route = make_route(A, B)
    assert {pick(route, view=make_view(n, hot={"a"}))[1] for n in range(20)} == {"b"}
    assert pick(make_route(A), view=make_view(hot={"a"})) == ("mr-a", "a")
    assert pick(make_route(A), make_route(B, priority=7), view=make_view(hot={"a"}))[1] == "b"
    # One whose temperature nobody told is not hot.
    assert pick(route, view=make_view(hot={"a"}))[1] == "b"
    assert pick(route, view=make_view(hot={"a", "b"})) is not None


@pytest.mark.req("GW-10")
def test_what_was_tried_is_never_taken_again() -> None:
    first, second = make_route(A, route_id="first"), make_route(B, route_id="second", weight=0)
    assert pick(first, second, tried={"a"}) == ("second", "b")
    assert pick(first, tried={"a"}) is None
    assert pick(first, second, tried={"a", "b"}) is None


@pytest.mark.req("GW-04")
def test_a_replica_at_its_limit_gets_none() -> None:
    route = make_route(A, B, balancing="random")
    assert {pick(route, view=make_view(n, in_flight={"a": 4}, limit=4))[1] for n in range(20)} == {"b"}
    assert pick(make_route(A), view=make_view(in_flight={"a": 4}, limit=4)) is None


# ---- pins ----


@pytest.mark.req("GW-03")
def test_a_tester_gets_the_version_or_the_backend_that_is_named() -> None:
    stable, canary = make_route(A, B, route_id="s"), make_route(C, route_id="c", version="v2", weight=0)
    assert pick(stable, canary, pins=Pins(version="v2")) == ("c", "c")
    assert pick(stable, canary, pins=Pins(backend="b")) == ("s", "b")
    assert pick(stable, canary, pins=Pins(version="v3")) is None
    assert pick(stable, canary, pins=Pins(version="v2", backend="a")) is None
    # A tester wants that one, as it is.
    view = make_view(circuits=failed(B, times=5), hot={"b"})
    assert pick(stable, canary, pins=Pins(backend="b"), view=view) == ("s", "b")
    assert pick(stable, pins=Pins(backend="b"), tried={"b"}) is None


# ---- balancing ----


@pytest.mark.req("GW-04")
def test_round_robin_takes_turns() -> None:
    view, route = make_view(), make_route(A, B, C, balancing="round_robin")
    assert [pick(route, view=view)[1] for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.req("GW-04")
@pytest.mark.parametrize("balancing", ["least_connections", "engine_aware", "of a later version"])
def test_least_connections(balancing: str) -> None:
    route = make_route(A, B, C, balancing=balancing)
    assert pick(route, view=make_view(in_flight={"a": 2, "b": 1, "c": 3})) == ("mr-a", "b")
    assert {pick(route, view=make_view(n, in_flight={"a": 1}))[1] for n in range(20)} == {"b", "c"}


@pytest.mark.req("GW-04")
def test_random_takes_all() -> None:
    route = make_route(A, B, C, balancing="random")
    assert {pick(route, view=make_view(n, in_flight={"a": 9}))[1] for n in range(50)} == {"a", "b", "c"}


@pytest.mark.req("GW-04")
@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({"a": (5, 0, 0.5), "b": (2, 0, 0.5)}, "b"),
        ({"a": (1, 4, 0.5), "b": (6, 0, 0.5)}, "b"),  # whoever waits, the next one waits behind
        ({"a": (4, 0, 0.95), "b": (5, 0, 0.1)}, "b"),  # few requests, but its memory is full of them
        ({"a": (4, 0, None), "b": (5, 0, 0.0)}, "a"),  # no comparing with what one doesn't say
    ],
)
def test_engines_own_loads_decide(loads: dict[str, tuple[float, float, float | None]], expected: str) -> None:
    told = {name: EngineLoad(*values, at=100.0) for name, values in loads.items()}
    view = make_view(loads=told, load_fresh_s=5.0, in_flight={})
    assert pick(make_route(A, B, balancing="engine_aware"), view=view, now=104.0)[1] == expected


@pytest.mark.req("GW-04")
def test_a_stale_or_missing_load_is_not_zero() -> None:
    route = make_route(A, B, balancing="engine_aware")
    fresh, old = EngineLoad(9, 9, 1.0, at=100.0), EngineLoad(0, 0, 0.0, at=90.0)
    for loads in ({"a": fresh, "b": old}, {"a": fresh}):
        view = make_view(loads=loads, load_fresh_s=5.0, in_flight={"b": 1})
        assert pick(route, view=view, now=102.0)[1] == "a"


@pytest.mark.req("GW-04")
def test_calls_sent_since_an_engine_spoke_are_counted_in() -> None:
    route = make_route(A, B, balancing="engine_aware")
    loads = {
        "a": EngineLoad(3, 0, None, at=0.0, in_flight=3),
        "b": EngineLoad(4, 0, None, at=0.0, in_flight=4),
    }
    view = make_view(loads=loads, load_fresh_s=5.0, in_flight={"a": 5, "b": 4})
    assert pick(route, view=view, now=1.0)[1] == "b"


# ---- sessions ----


def sticky_to(name: str) -> Callable[[str], str]:
    return lambda kind: name


@pytest.mark.req("GW-06")
def test_a_session_stays_and_moves_once() -> None:
    """One replica dies: its sessions go to one other each, no other session moves. It comes back as another
    attempt: nobody moves but those that the new one draws, as with any replica that is added."""
    route = make_route(A, B, C, D, sticky="header")
    names = [f"session-{n}" for n in range(400)]

    def where(over: Route, view: View | None = None) -> dict[str, str]:
        return {name: pick(over, view=view, session=sticky_to(name))[1] for name in names}

    before = where(route)
    assert before == where(make_route(D, C, B, A, sticky="header"), make_view(99, in_flight={"a": 50}))
    assert all(60 < count < 140 for count in Counter(before.values()).values())
    after = where(make_route(A, B, C, sticky="header"))
    assert {name for name in names if before[name] != after[name]} == {
        name for name in names if before[name] == "d"
    }
    assert where(route, make_view(circuits=failed(D))) == after
    reborn = where(make_route(A, B, C, make_replica(1, "d", attempt=2), sticky="header"))
    assert all(reborn[name] in (after[name], "d") for name in names)


@pytest.mark.req("GW-06", "GW-03")
def test_a_session_stays_with_its_version_and_weights_hold_over_sessions() -> None:
    routes = (
        make_route(A, B, route_id="stable", weight=90, sticky="user"),
        make_route(C, route_id="canary", weight=10, version="v2", sticky="user"),
    )
    names = [f"user-{n}" for n in range(2000)]
    first = {name: pick(*routes, session=sticky_to(name)) for name in names}
    assert first == {
        name: pick(*routes, view=make_view(n), session=sticky_to(name)) for n, name in enumerate(names)
    }
    assert 130 < sum(route == "canary" for route, _ in first.values()) < 280


@pytest.mark.req("GW-06")
def test_a_call_of_no_session_is_balanced() -> None:
    route = make_route(A, B, sticky="user")
    assert {pick(route, view=make_view(n), session=sticky_to(""))[1] for n in range(20)} == {"a", "b"}


# ---- all together ----

REPLICAS = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4).map(
    lambda names: tuple(make_replica(1, name) for name in names)
)
ROUTES = st.lists(
    st.builds(
        lambda replicas, priority, weight, balancing, sticky, version: make_route(
            *replicas, priority=priority, weight=weight, balancing=balancing, sticky=sticky, version=version
        ),
        REPLICAS,
        st.integers(-2, 2),
        st.sampled_from([0, 0, 1, 50]),
        st.sampled_from(["round_robin", "random", "least_connections", "engine_aware"]),
        st.sampled_from(["", "key"]),
        st.sampled_from(["v1", "v2"]),
    ),
    max_size=4,
).map(tuple)


@pytest.mark.req("GW-03", "GW-07", "GW-08", "GW-10")
@given(
    ROUTES,
    st.sets(st.sampled_from("abcdef")),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4)),
    st.sets(st.sampled_from("abcdef"), max_size=2),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)),
    st.sampled_from([Pins(), Pins(version="v2"), Pins(backend="a"), Pins(session="s")]),
    st.sampled_from(["", "s"]),
)
def test_nothing_better_is_ever_left(
    routes: tuple[Route, ...],
    hot: set[str],
    refused: dict[str, int],
    tried: set[str],
    in_flight: dict[str, int],
    pins: Pins,
    session: str,
) -> None:
    circuits: dict[str, Circuit] = {}
    for name, times in refused.items():
        circuits |= failed(make_replica(1, name), times=times)
    view = make_view(hot=hot, circuits=circuits, in_flight=in_flight, limit=3)
    choice = choose(routes, view, 1.0, tried=tried, pins=pins, session=sticky_to(session))
    standings = [
        (judge(route, one, view, 1.0, tried=tried, pins=pins), route.priority)
        for route in routes
        for one in route.replicas
    ]
    able = [rank for rank in standings if rank[0] < Standing.OPEN]
    if choice is None:
        assert not able
        return
    chosen = judge(choice.route, choice.replica, view, 1.0, tried=tried, pins=pins)
    assert (chosen, choice.route.priority) == min(able)
    assert choice.replica.task_id not in tried
    assert choice.replica in choice.route.replicas
