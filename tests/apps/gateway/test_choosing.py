"""Which backend a call gets, through a running gateway: pins, failures, probes, heat, loads, sessions."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from apps.gateway.plane.io.probes import Probes
from apps.routing.table import DEFAULT_SCOPES, PIN
from tests.fakes.gateway import (
    BODY,
    SECRET,
    FakeSource,
    RunningGateway,
    make_key,
    make_replica,
    make_route,
    make_table,
    until,
)
from tests.fakes.mock_engine import MockEngine

CHAT = "/v1/chat/completions"
QUIET = {"version_poll_s": 0.05, "probe_period_s": 0.0, "engine_load_poll_s": 0.0, "heat_poll_s": 3600.0}


async def unused_port() -> int:
    async with MockEngine() as gone:
        return gone.port


async def ask(
    http: aiohttp.ClientSession,
    gateway: RunningGateway,
    headers: dict[str, str] | None = None,
    **body: object,
) -> tuple[int, str]:
    """The status, and the error's code or the task that served it."""
    async with http.post(gateway.url + CHAT, json={**BODY, **body}, headers=headers) as response:
        answer = json.loads(await response.read())
        if response.status != 200:
            if response.status == 503:
                assert int(response.headers["Retry-After"]) > 0
            return response.status, answer["error"]["code"]
    return 200, gateway.records()[-1].task_id


def probes_of(gateway: RunningGateway) -> Probes:
    return gateway.app._probes


def states_of(gateway: RunningGateway) -> dict[str, str]:
    return {task_id: word.state for task_id, word in gateway.app._parts.choosing.words().items()}


@pytest.fixture
async def other() -> AsyncIterator[MockEngine]:
    async with MockEngine() as running:
        yield running


@pytest.mark.req("GW-03")
async def test_testers_choose_their_backend_and_nobody_else(
    engine: MockEngine, other: MockEngine, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    stable = make_route(make_replica(engine, "task-a"))
    canary = make_route(make_replica(other, "task-b"), route_id="mr-b", version="v2", weight=0)
    source = FakeSource(make_table(stable, canary))
    async with RunningGateway(source, tmp_path, **QUIET) as gateway:
        assert await ask(http, gateway, {"X-HeteroFlow-Version": "v2"}) == (403, "pin_not_allowed")
        assert await ask(http, gateway, {"X-HeteroFlow-Backend": "task-b"}) == (403, "pin_not_allowed")
        assert await ask(http, gateway) == (200, "task-a")
        tester = {SECRET: make_key(scopes=DEFAULT_SCOPES | {PIN})}
        source.table = make_table(stable, canary, keys=tester, version=2)
        await until(lambda: gateway.app._tables.current.version == 2)
        assert await ask(http, gateway, {"X-HeteroFlow-Version": "v2"}) == (200, "task-b")
        assert await ask(http, gateway, {"X-HeteroFlow-Backend": "task-b"}) == (200, "task-b")
        missing = await ask(http, gateway, {"X-HeteroFlow-Version": "v9"})
        assert missing == (404, "pinned_backend_not_found")
        assert await ask(http, gateway) == (200, "task-a")


@pytest.mark.req("GW-03", "TEN-04")
@pytest.mark.usefixtures("each_shell")
async def test_answers_name_their_backend_to_testers_alone(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    dead = make_route(make_replica(await unused_port(), "task-dead"))
    second = make_route(make_replica(engine, "task-b"), route_id="mr-b", priority=1)
    keys = {SECRET: make_key(), "sk-tester": make_key(scopes=DEFAULT_SCOPES | {PIN})}
    async with RunningGateway(FakeSource(make_table(dead, second, keys=keys)), tmp_path, **QUIET) as gateway:

        async def told(secret: str, **body: object) -> tuple[int, str | None]:
            headers = {"Authorization": f"Bearer {secret}"}
            async with http.post(gateway.url + CHAT, json={**BODY, **body}, headers=headers) as answer:
                await answer.read()
                return answer.status, answer.headers.get("X-HeteroFlow-Backend")

        assert await told(SECRET) == (200, None)
        for stream in (False, True):
            assert await told("sk-tester", stream=stream) == (200, "task-b")
        engine.plan.status = 500
        assert await told("sk-tester") == (502, "task-b")
        gateway.app._tables.current = make_table(dead, keys=keys, version=2)
        assert await told("sk-tester", model="none") == (404, None)


@pytest.mark.req("GW-08", "GW-02")
async def test_a_dead_replica_costs_three_calls_and_one_a_pause(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    dead = make_replica(await unused_port())
    async with RunningGateway(
        FakeSource(make_table(make_route(dead))), tmp_path, circuit_pause_s=3600.0, **QUIET
    ) as gateway:
        assert [await ask(http, gateway) for _ in range(3)] == [(502, "upstream_unreachable")] * 3
        assert states_of(gateway) == {"task-a": "open"}
        assert gateway.app._parts.choosing.states() == {"open": 1}
        assert await ask(http, gateway) == (503, "no_backend")
        word = gateway.app._parts.choosing.words()["task-a"]
        assert (word.failures, word.last_failure) == (3, "refused")
        # A probe that reaches it brings it back; nothing else has happened to it.
        await probes_of(gateway).probe_all()
        assert await ask(http, gateway) == (503, "no_backend")
        gateway.source.table = make_table(make_route(make_replica(engine)), version=2)
        await until(lambda: gateway.app._tables.current.version == 2)
        await probes_of(gateway).probe_all()
        assert await ask(http, gateway) == (200, "task-a")


@pytest.mark.req("GW-08")
async def test_half_open_lets_one_call_try(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    dead = make_replica(await unused_port())
    source = FakeSource(make_table(make_route(dead)))
    async with RunningGateway(source, tmp_path, circuit_pause_s=0.2, **QUIET) as gateway:
        for _ in range(3):
            await ask(http, gateway)
        await until(lambda: states_of(gateway) == {"task-a": "half_open"})
        assert await ask(http, gateway) == (502, "upstream_unreachable")
        source.table = make_table(make_route(make_replica(engine)), version=2)
        await until(lambda: gateway.app._tables.current.version == 2)
        await until(lambda: states_of(gateway) == {"task-a": "half_open"})
        assert await ask(http, gateway) == (200, "task-a")
        assert states_of(gateway)["task-a"] == "closed"


@pytest.mark.req("GW-08")
async def test_errors_pass_a_replica_over_and_callers_faults_do_not(
    http: aiohttp.ClientSession, engine: MockEngine, other: MockEngine, tmp_path: Path
) -> None:
    route = make_route(make_replica(engine, "task-a"), make_replica(other, "task-b"), balancing="round_robin")
    source = FakeSource(make_table(route))
    async with RunningGateway(source, tmp_path, sideline_s=3600.0, **QUIET) as gateway:
        engine.plan.status = 400
        assert Counter([(await ask(http, gateway))[0] for _ in range(20)]) == {400: 10, 200: 10}
        assert states_of(gateway) == {}
        engine.plan.status = 500
        statuses = Counter([(await ask(http, gateway))[0] for _ in range(20)])
        assert statuses == {502: 5, 200: 15}
        assert states_of(gateway) == {"task-a": "passed_over"}
        source.table = make_table(make_route(make_replica(engine, "task-a")), version=2)
        await until(lambda: gateway.app._tables.current.version == 2)
        # It may be the calls: where no other is left it still gets them.
        assert (await ask(http, gateway))[0] == 502


@pytest.mark.req("GW-08")
@pytest.mark.parametrize(("status", "code"), [(500, "upstream_error"), (401, "upstream_credential")])
async def test_a_trial_that_is_answered_with_an_error_brings_nothing_back(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path, status: int, code: str
) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine))))
    async with RunningGateway(source, tmp_path, sideline_s=0.05, **QUIET) as gateway:
        engine.plan.status = status
        for _ in range(5):
            await ask(http, gateway)
        for _ in range(2):
            await until(lambda: states_of(gateway) == {"task-a": "half_open"})
            assert await ask(http, gateway) == (502, code)
            assert states_of(gateway) != {"task-a": "closed"}
        engine.plan.status = 200
        await until(lambda: states_of(gateway) == {"task-a": "half_open"})
        assert await ask(http, gateway) == (200, "task-a")
        assert states_of(gateway) == {"task-a": "closed"}


@pytest.mark.req("GW-08", "GW-09")
async def test_cut_streams_and_silence_count_against_a_replica(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine))))
    async with RunningGateway(
        source, tmp_path, first_byte_timeout_s=0.7, circuit_failures=3, **QUIET
    ) as gateway:

        def word() -> tuple[str, int, str]:
            found = gateway.app._parts.choosing.words()["task-a"]
            return found.state, found.failures, found.last_failure

        async def stream() -> bytes:
            async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
                return await response.read()

        engine.plan.cut_after = 1
        assert b"upstream_truncated" in await stream()
        assert word() == ("closed", 1, "broken")
        engine.plan.cut_after, engine.plan.no_done = None, True
        assert b"upstream_truncated" in await stream()
        assert word() == ("closed", 2, "broken")
        engine.plan.delay_s = 60
        assert await ask(http, gateway) == (504, "upstream_timeout")
        assert word() == ("passed_over", 3, "timeout")


@pytest.mark.req("GW-10")
async def test_a_call_tries_each_replica_once(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    dead = [make_replica(await unused_port(), f"task-{n}") for n in range(3)]
    routes = (make_route(*dead[:2]), make_route(make_replica(engine, "task-live"), weight=0))
    async with RunningGateway(FakeSource(make_table(*routes)), tmp_path, **QUIET) as gateway:
        assert await ask(http, gateway) == (200, "task-live")
        assert {word.failures for word in gateway.app._parts.choosing.words().values()} == {1}
    async with RunningGateway(
        FakeSource(make_table(make_route(*dead))), tmp_path / "b", backend_tries=9, **QUIET
    ) as gateway:
        assert await ask(http, gateway) == (502, "upstream_unreachable")
        assert {word.failures for word in gateway.app._parts.choosing.words().values()} == {1}


@pytest.mark.req("GW-08")
async def test_probes_take_a_backend_out_before_any_call_suffers(
    http: aiohttp.ClientSession, engine: MockEngine, other: MockEngine, tmp_path: Path
) -> None:
    route = make_route(make_replica(engine, "task-a"), make_replica(other, "task-b"))
    async with RunningGateway(FakeSource(make_table(route)), tmp_path, **QUIET) as gateway:
        await probes_of(gateway).probe_all()
        assert (engine.health_checks, other.health_checks) == (0, 0), "nobody uses it"
        await ask(http, gateway)
        upstream = gateway.app._parts.upstream
        for replica in route.replicas:
            if (kept := upstream.kept(replica)) is not None:
                kept.close()
        await probes_of(gateway).probe_all()
        assert (engine.health_checks, other.health_checks) == (1, 1)
        assert [upstream.kept(replica) for replica in route.replicas] == [None, None]
        engine.plan.health = 503
        await probes_of(gateway).probe_all()
        assert states_of(gateway) == {"task-a": "closed"}
        await probes_of(gateway).probe_all()
        assert states_of(gateway) == {"task-a": "passed_over"}
        assert {(await ask(http, gateway))[1] for _ in range(10)} == {"task-b"}
        engine.plan.health = 200
        await probes_of(gateway).probe_all()
        assert states_of(gateway) == {}
        await other.__aexit__()
        for _ in range(2):
            await probes_of(gateway).probe_all()
        assert states_of(gateway) == {"task-b": "open"}
        assert {await ask(http, gateway) for _ in range(5)} == {(200, "task-a")}


@pytest.mark.req("GW-07")
async def test_hot_cards_get_no_new_call_until_they_have_cooled(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    route = make_route(make_replica(engine, "task-a"), make_replica(engine, "task-b"))
    source = FakeSource(make_table(route))
    async with RunningGateway(source, tmp_path, **QUIET) as gateway:

        async def taken() -> set[str]:
            await probes_of(gateway).ask_heat()
            return {(await ask(http, gateway))[1] for _ in range(20)}

        source.degrees = {"task-a": 84}
        assert await taken() == {"task-a", "task-b"}
        source.degrees = {"task-a": 85}
        assert await taken() == {"task-b"}
        assert gateway.app._parts.choosing.words()["task-a"].hot_c == 85
        source.degrees = {"task-a": 81}
        assert await taken() == {"task-b"}, "not cool enough yet"
        source.broken = True
        assert await taken() == {"task-b"}, "what was known last holds"
        source.broken = False
        source.degrees = {"task-a": 90, "task-b": 90}
        assert await taken() == {"task-a", "task-b"}, "no other can"
        source.degrees = {"task-b": 90}
        assert await taken() == {"task-a"}, "it is not told any more"


@pytest.mark.req("GW-04")
async def test_engines_are_asked_for_their_load_off_the_path(
    http: aiohttp.ClientSession, engine: MockEngine, other: MockEngine, tmp_path: Path
) -> None:
    route = make_route(
        make_replica(engine, "task-a"), make_replica(other, "task-b"), balancing="engine_aware"
    )
    async with RunningGateway(FakeSource(make_table(route)), tmp_path, **QUIET) as gateway:
        assert {(await ask(http, gateway))[1] for _ in range(20)} == {"task-a", "task-b"}
        engine.plan.load, other.plan.load = (7, 2, 0.9), (1, 0, 0.1)
        await probes_of(gateway).ask_loads()
        assert {(await ask(http, gateway))[1] for _ in range(20)} == {"task-b"}
        word = gateway.app._parts.choosing.words()["task-a"]
        assert (word.running, word.waiting, word.kv_use) == (7, 2, 0.9)
        assert word.told_at is not None


@pytest.mark.req("GW-06")
@pytest.mark.parametrize("sticky", ["header", "user", "key"])
async def test_a_session_stays_and_moves_once(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path, sticky: str
) -> None:
    replicas = [make_replica(engine, f"task-{n}") for n in range(4)]
    source = FakeSource(make_table(make_route(*replicas, sticky=sticky)))
    async with RunningGateway(source, tmp_path, **QUIET) as gateway:

        async def served(calls: int) -> set[str]:
            more = {"user": "sam"} if sticky == "user" else {}
            headers = {"X-HeteroFlow-Session": "s-17"} if sticky == "header" else None
            return {(await ask(http, gateway, headers, **more))[1] for _ in range(calls)}

        (first,) = await served(8)
        left = [one for one in replicas if one.task_id != first]
        source.table = make_table(make_route(*left, sticky=sticky), version=2)
        await until(lambda: gateway.app._tables.current.version == 2)
        (second,) = await served(8)
        assert second != first
        if sticky != "key":
            async with http.post(gateway.url + CHAT, json=BODY) as response:
                assert response.status == 200, "a call of no session is served like any other"


@pytest.mark.req("GW-08", "SLEEP-06")
async def test_what_is_known_of_backends_is_told(
    http: aiohttp.ClientSession, engine: MockEngine, tmp_path: Path
) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine))))
    async with RunningGateway(source, tmp_path, load_say_s=0.05, **QUIET) as gateway:
        engine.plan.status = 500
        await ask(http, gateway)
        await until(lambda: source.said and source.said[-1].backends)
        word = source.said[-1].backends["task-a"]
        assert (word.state, word.failures, word.last_failure) == ("closed", 1, "error")
