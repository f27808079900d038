"""What a process knows of backends between calls: trials, counts, what is forgotten."""

import random

import msgspec
import pytest

from apps.gateway.plane.core.choice import Failure
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.engine_load import EngineLoad
from apps.gateway.plane.core.request import parse_call
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.tables import Tables
from apps.routing.load import seen_by
from apps.routing.table import Replica, Route
from tests.fakes.gateway import MODEL, TENANT, FakeSource, make_key, make_replica, make_route, make_table

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
    assert [(of, route.replicas) for of, route in choosing.used_routes(60.0)] == [(TENANT, (A,))]
    assert set(choosing.words()) == {"a"}
    assert choosing.used_routes(-1.0) == [], "nobody has called it lately"


OTHER = make_key(key_id="key-bbbbbbbbbbbbbbbb", tenant_id="ten-bbbbbbbbbbbbbbbb")
FAR = Replica("ext-a", 1, "far.example", 443, "external", "", external=True, tls=True)


def make_shared(**settings: object) -> Choosing:
    """Two tenants with a route each to one external engine and a dearer one to their own."""
    choosing = make_choosing(**settings)
    routes = (make_route(FAR, group_id=""), make_route(A, route_id="mr-own", priority=9))
    table = make_table(*routes)
    choosing._tables.current = msgspec.structs.replace(
        table, routes=table.routes | {OTHER.tenant_id: {MODEL: routes}}
    )
    return choosing


@pytest.mark.req("GW-08", "GW-19", "TEN-04")
@pytest.mark.parametrize("kind", list(Failure))
def test_what_one_tenant_meets_takes_a_shared_engine_from_no_other(kind: Failure) -> None:
    choosing = make_shared()
    for _ in range(5):
        choice = choosing.enter(CALL, KEY)
        if choice is not None and choice.replica == FAR:
            choosing.failed(choice, kind)
    mine, theirs = choosing.enter(CALL, KEY), choosing.enter(CALL, OTHER)
    assert mine is not None and theirs is not None
    assert (mine.replica, theirs.replica, theirs.trial) == (A, FAR, False)
    word = choosing.words()["ext-a"]
    assert (word.state, sum(choosing.states().values())) == ("passed_over", 1)
    assert seen_by(word, KEY.tenant_id).failures == word.failures > 0
    own = seen_by(word, OTHER.tenant_id)
    assert (own.state, own.failures, own.last_failure, own.tenants) == ("closed", 0, "", {})
    choosing.succeeded(theirs)
    still = choosing.enter(CALL, KEY)
    assert still is not None and still.replica == A, "another's success is no proof for these calls either"


@pytest.mark.req("GW-08", "GW-19")
def test_a_probe_speaks_for_all_that_call_the_engine() -> None:
    choosing = make_shared(probe_failures=1)
    tenants = (KEY.tenant_id, OTHER.tenant_id)
    choosing.note_probe(FAR, tenants, reached=False, well=False)
    for key in (KEY, OTHER):
        choice = choosing.enter(CALL, key)
        assert choice is not None and choice.replica == A
    choosing.note_probe(FAR, tenants, reached=True, well=True)
    for key in (KEY, OTHER):
        choice = choosing.enter(CALL, key)
        assert choice is not None and choice.replica == FAR
    assert choosing._circuits == {}


@pytest.mark.req("GW-08", "GW-19")
def test_what_was_learned_of_an_attempt_or_an_address_ends_with_it() -> None:
    choosing = make_choosing(make_route(A))
    late = [choosing.enter(CALL, KEY) for _ in range(5)]
    choosing.used_routes(60.0)
    assert late[0] is not None
    choosing.failed(late[0], Failure.ERROR)
    choosing.note_load(A, EngineLoad(9, 9, None, at=0.0))
    moved = make_replica(2, "a", attempt=2)
    choosing._tables.current = make_table(make_route(moved), version=2)
    choosing.used_routes(60.0)
    assert choosing.words() == {}
    # What the one before brings in late says nothing of this one, and wipes nothing out.
    fresh = choosing.enter(CALL, KEY)
    assert fresh is not None
    choosing.failed(fresh, Failure.REFUSED)
    for choice in late:
        assert choice is not None
        choosing.failed(choice, Failure.REFUSED)
    choosing.note_load(A, EngineLoad(9, 9, None, at=0.0))
    choosing.note_probe(A, [TENANT], reached=False, well=False)
    word = choosing.words()["a"]
    assert (word.state, word.failures, word.running) == ("passed_over", 1, None)


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
