"""What a process knows of backends between calls: trials, counts, what is forgotten."""

import random

import pytest

from apps.gateway.plane.core.choice import Failure
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.engine_load import EngineLoad
from apps.gateway.plane.core.request import parse_call
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.tables import Tables
from apps.routing.table import Route
from tests.fakes.gateway import FakeSource, make_key, make_replica, make_route, make_table

CALL = parse_call("/v1/chat/completions", b'{"model": "caller-name", "messages": [], "user": "sam"}')
KEY = make_key()
A, B = make_replica(1, "a"), make_replica(1, "b")


def make_choosing(*routes: Route, **settings: object) -> Choosing:
    config = GatewayConfig(**settings)
    tables = Tables(FakeSource(make_table(*routes)), config)
    tables.current = make_table(*routes)
    return Choosing(tables, LiveCounts(), random.Random(1), config)


@pytest.mark.req("GW-08")
def test_one_call_tries_and_the_next_one_if_its_caller_left() -> None:
    choosing = make_choosing(make_route(A), circuit_refusals=1, circuit_pause_s=0.0)
    failed = choosing.enter(CALL, KEY)
    assert failed is not None
    choosing.failed(failed, Failure.REFUSED)
    choosing.leave(failed)
    trial = choosing.enter(CALL, KEY)
    assert trial is not None and trial.trial
    assert choosing.enter(CALL, KEY) is None
    choosing.leave(trial)
    again = choosing.enter(CALL, KEY)
    assert again is not None and again.trial
    choosing.succeeded(again)
    free = choosing.enter(CALL, KEY)
    assert free is not None and not free.trial
    choosing.leave(again)
    choosing.leave(free)
    assert choosing.live.in_flight == {}


@pytest.mark.req("GW-08")
def test_what_left_the_table_is_forgotten() -> None:
    choosing = make_choosing(make_route(A, B))
    for _ in range(2):
        choice = choosing.enter(CALL, KEY)
        assert choice is not None
        choosing.failed(choice, Failure.ERROR)
    choosing.note_load(B, EngineLoad(1, 0, None, at=0.0))
    choosing.used_routes(60.0)
    assert set(choosing.words()) == {"a", "b"}
    choosing._tables.current = make_table(make_route(A), version=2)
    assert [route.replicas for route in choosing.used_routes(60.0)] == [(A,)]
    assert set(choosing.words()) == {"a"}
    assert choosing.used_routes(-1.0) == [], "nobody has called it lately"


@pytest.mark.req("GW-04")
def test_the_turns_of_a_route_that_is_gone_are_forgotten() -> None:
    choosing = make_choosing(make_route(A, B, balancing="round_robin"))
    assert choosing.enter(CALL, KEY) and choosing.live.turns == {"mr-a": 1}
    choosing._tables.current = make_table(make_route(A, B, route_id="mr-b"), version=2)
    choosing.used_routes(60.0)
    assert choosing.live.turns == {}


@pytest.mark.req("GW-06")
def test_a_session_is_named_by_the_call_or_its_key() -> None:
    for sticky in ("user", "key"):
        choosing = make_choosing(make_route(A, B, sticky=sticky))
        taken = {
            choice.replica.task_id for _ in range(20) if (choice := choosing.enter(CALL, KEY)) is not None
        }
        assert len(taken) == 1
    for body in (
        b'{"model": "caller-name"}',
        b'{"model": "caller-name", "user": null}',
        b'{"model": "caller-name", "user": {}}',
    ):
        call = parse_call("/v1/chat/completions", body)
        choosing = make_choosing(make_route(A, B, sticky="user"))
        taken = {
            choice.replica.task_id for _ in range(20) if (choice := choosing.enter(call, KEY)) is not None
        }
        assert taken == {"a", "b"}
