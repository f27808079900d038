"""The agent's link against a server that misbehaves."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from agent.contract.codes import Code
from agent.contract.messages import (
    CardReport,
    ClaimRefused,
    ClaimRequest,
    DesiredTask,
    DialTarget,
    EngineReport,
    HostReport,
    JoinRequest,
    ReportReply,
    ReportRequest,
    TaskReport,
)
from agent.contract.states import Desired, Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable, Superseded
from agent.identity import Incarnation
from agent.link.client import ServerClient
from agent.link.heartbeat import REJOIN, Heartbeat
from agent.link.lookout import keep_lookout
from agent.link.reports import ReportQueue
from agent.supervisor.desired import DesiredList
from tests.agent.fakes import make_settings, make_spec
from tests.fakes.fake_server import FakeServer, answer_with, hang, refuse

JOIN = JoinRequest("jt-x", "0" * 64, "machine", "host", "0.1.0")


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


@pytest.fixture
async def client(server: FakeServer, tmp_path: Path) -> AsyncIterator[ServerClient]:
    configured = make_settings(tmp_path, server_url=server.url, request_timeout_s=0.5)
    async with ServerClient(configured) as made:
        digest = hashlib.sha256(b"secret").hexdigest()
        reply = await made.join(JoinRequest("jt-x", digest, "machine", "host", "0.1.0"))
        made.set_credential(reply.node_id, "secret")
        yield made


async def until(true: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "it did not come to that in time"
        await asyncio.sleep(0.01)


class Readings:
    silent = False

    async def cards(self) -> tuple[list[CardReport], bool]:
        return [], False

    def host(self) -> HostReport:
        return HostReport(cpu_count=1, memory_total_mb=1)

    def ports_in_use(self) -> list[int]:
        return []

    def images(self) -> list[str]:
        return ["vllm/vllm-openai:v0.9.1"]

    def volume_prefixes(self) -> list[str]:
        return ["/data"]

    def host_ipc(self) -> bool:
        return False

    def runtime_silent(self) -> bool:
        return self.silent

    def engines(self, cards: list[CardReport]) -> list[EngineReport]:
        return [EngineReport("vllm", None)]


def heartbeat(
    client: ServerClient,
    folder: Path,
    desired: DesiredList,
    released: list[str] | None = None,
    **changes: object,
) -> Heartbeat:
    return Heartbeat(
        settings=make_settings(folder, **changes),
        incarnation=Incarnation("inc-1", 1.0),
        machine_id="machine",
        agent_version="0.1.0",
        dial=DialTarget(host="127.0.0.1"),
        send=client.heartbeat,
        readings=Readings(),
        desired=desired,
        running=list,
        on_change=lambda: None,
        on_released=released.extend if released is not None else lambda cards: None,
        on_files=lambda orders: None,
    )


@pytest.mark.req("AGENT-01")
async def test_every_question_carries_credential_and_contract(
    server: FakeServer, client: ServerClient
) -> None:
    server.always["claims"] = lambda _: refuse(403, "another_machine")
    with pytest.raises(ServerRefused):
        await client.claim(ClaimRequest("inc", "task-a", 1))
    headers = server.headers[-1]
    assert headers["Authorization"] == f"Bearer {next(iter(server.nodes.values()))}:secret"
    assert headers["X-HeteroFlow-Contract"] == "2"


@pytest.mark.req("AGENT-01")
async def test_join_repeated_after_a_lost_answer_gives_the_same_node(
    server: FakeServer, client: ServerClient
) -> None:
    nodes = {(await client.join(JOIN)).node_id for _ in range(3)}
    assert len(nodes) == 1


@pytest.mark.parametrize(
    "fault",
    [
        answer_with(500, "oops"),
        answer_with(503),
        answer_with(429),
        answer_with(302),
        answer_with(200, "<html>a proxy's page</html>"),
        answer_with(200, ""),
        answer_with(200, '{"type":"unchanged"}'),
        hang(2),
    ],
)
async def test_no_usable_answer_is_no_answer(server: FakeServer, client: ServerClient, fault: object) -> None:
    server.always["claims"] = fault  # type: ignore[assignment]
    with pytest.raises(ServerUnreachable):
        await client.claim(ClaimRequest("inc", "task-a", 1))


async def test_answer_cut_short_is_no_answer(
    server: FakeServer, client: ServerClient, tmp_path: Path
) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"type":"desired","tasks":[')
        assert request.transport is not None
        request.transport.close()
        return response

    server.always["heartbeat"] = cut
    desired = DesiredList()
    await heartbeat(client, tmp_path, desired).beat()
    assert desired.complete_lists == 0


async def test_refusals_are_answers(server: FakeServer, client: ServerClient) -> None:
    for status in (400, 401, 403, 404, 409, 426):
        server.always["claims"] = lambda _, s=status: refuse(s, "some_code")  # type: ignore[misc]
        with pytest.raises(ServerRefused) as caught:
            await client.claim(ClaimRequest("inc", "task-a", 1))
        assert (caught.value.status, caught.value.code) == (status, "some_code")
    server.always["claims"] = answer_with(404, "not json")
    with pytest.raises(ServerRefused):
        await client.claim(ClaimRequest("inc", "task-a", 1))


async def test_server_that_is_away_is_no_answer(tmp_path: Path) -> None:
    async with ServerClient(make_settings(tmp_path)) as client:
        with pytest.raises(ServerUnreachable):
            await client.join(JOIN)


@pytest.mark.req("AGENT-09", "AGENT-14")
async def test_heartbeat_counts_complete_answers_only(
    server: FakeServer, client: ServerClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.want(make_spec(), DesiredTask("task-a", 1, Desired.RUN))
    desired = DesiredList()
    beat = heartbeat(client, tmp_path, desired)
    await beat.beat()
    await beat.beat()  # unchanged
    assert (desired.complete_lists, set(desired.tasks)) == (2, {("task-a", 1)})
    server.desired.clear()
    for fault in (answer_with(500), answer_with(200, "{}"), lambda _: refuse(401, "x"), hang(2)):
        server.fail_once("heartbeat", fault)
        await beat.beat()
    assert [REJOIN in line for line in caplog.messages if "refuses this node" in line] == [True]
    assert (desired.complete_lists, set(desired.tasks)) == (2, {("task-a", 1)})
    server.complete = False
    await beat.beat()
    assert (desired.complete_lists, set(desired.tasks)) == (2, {("task-a", 1)})
    server.complete = True
    await beat.beat()
    assert (desired.complete_lists, set(desired.tasks)) == (3, set())
    assert [h.sequence for h in server.heartbeats] == sorted(h.sequence for h in server.heartbeats)


@pytest.mark.req("AGENT-02")
async def test_older_run_gives_way_to_a_newer_one(
    server: FakeServer, client: ServerClient, tmp_path: Path
) -> None:
    server.always["heartbeat"] = lambda _: refuse(409, Code.CLAIM_SUPERSEDED)
    with pytest.raises(Superseded):
        await heartbeat(client, tmp_path, DesiredList()).beat()
    server.always["heartbeat"] = lambda _: refuse(409, "something_else")
    await heartbeat(client, tmp_path, DesiredList()).beat()


@pytest.mark.req("AGENT-02")
async def test_claim_of_an_older_run_is_refused(
    server: FakeServer, client: ServerClient, tmp_path: Path
) -> None:
    server.want(make_spec(), DesiredTask("task-a", 1, Desired.RUN))
    await heartbeat(client, tmp_path, DesiredList()).beat()
    assert isinstance(await client.claim(ClaimRequest("inc-0", "task-a", 1)), ClaimRefused)
    assert not isinstance(await client.claim(ClaimRequest("inc-1", "task-a", 1)), ClaimRefused)


@pytest.mark.req("AGENT-01")
async def test_look_brings_the_next_heartbeat_now(
    server: FakeServer, client: ServerClient, tmp_path: Path
) -> None:
    beat = heartbeat(client, tmp_path, DesiredList(), heartbeat_s=3600)
    tasks = [
        asyncio.ensure_future(beat.run()),
        asyncio.ensure_future(keep_lookout(client, beat.look, first_pause_s=0.02)),
    ]
    try:
        await until(lambda: server.sockets and len(server.heartbeats) >= 2)  # one for the connection
        before = len(server.heartbeats)
        await server.say_look()
        await until(lambda: len(server.heartbeats) > before)
        await server.sockets[0].close()
        await until(lambda: len(server.sockets) == 2)
        before = len(server.heartbeats)
        await server.sockets[1].send_str("what is this")
        await server.say_look()
        await until(lambda: len(server.heartbeats) > before)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- reports --------------------------------------------------------------------------------------


def add(queue: ReportQueue, count: int) -> None:
    for i in range(count):
        queue.add(f"task-{i}", 1, Phase.READY, Observed.READY)


@pytest.mark.req("AGENT-02", "AGENT-14")
async def test_reports_arrive_once_and_in_order_through_faults(
    server: FakeServer, client: ServerClient
) -> None:
    queue = ReportQueue("inc-1", client.report, first_pause_s=0.01, max_pause_s=0.02)
    for fault in (answer_with(500), answer_with(200, "?"), lambda _: refuse(401, "x"), answer_with(502)):
        server.fail_once("reports", fault)
    running = asyncio.ensure_future(queue.run())
    try:
        add(queue, 150)
        assert await queue.drained(5)
        add(queue, 3)
        assert await queue.drained(5)
    finally:
        running.cancel()
    assert [r.sequence for r in server.reports] == list(range(1, 154))


@pytest.mark.req("AGENT-14")
async def test_answer_lost_after_it_was_taken_doubles_nothing() -> None:
    taken: list[int] = []
    lose = iter([True, False, True, False])

    async def send(request: ReportRequest) -> ReportReply:
        taken.extend(r.sequence for r in request.reports if r.sequence not in taken)
        if next(lose, False):
            raise ServerUnreachable("answer lost")
        return ReportReply(up_to_sequence=taken[-1])

    queue = ReportQueue("inc-1", send, first_pause_s=0.001, max_pause_s=0.002)
    running = asyncio.ensure_future(queue.run())
    add(queue, 5)
    assert await queue.drained(5)
    running.cancel()
    assert taken == [1, 2, 3, 4, 5]


@pytest.mark.req("AGENT-02")
@pytest.mark.parametrize(("status", "code"), [(400, "malformed"), (403, "not_this_nodes")])
async def test_refused_report_does_not_block_the_others(status: int, code: str) -> None:
    taken: list[int] = []

    async def send(request: ReportRequest) -> ReportReply:
        if any(r.sequence == 3 for r in request.reports):
            raise ServerRefused(status, code, "of no use")
        taken.extend(r.sequence for r in request.reports)
        return ReportReply(up_to_sequence=taken[-1])

    queue = ReportQueue("inc-1", send, first_pause_s=0.001, max_pause_s=0.002)
    running = asyncio.ensure_future(queue.run())
    add(queue, 6)
    assert await queue.drained(5)
    running.cancel()
    assert taken == [1, 2, 4, 5, 6]


@pytest.mark.req("AGENT-06")
async def test_cards_that_an_operator_released_are_told_with_either_answer(
    server: FakeServer, client: ServerClient, tmp_path: Path
) -> None:
    released: list[str] = []
    beat = heartbeat(client, tmp_path, DesiredList(), released)
    server.released_cards = ["GPU-1"]
    await beat.beat()
    assert released == ["GPU-1"]  # with the whole list
    await beat.beat()
    assert released == ["GPU-1"] * 2  # unchanged
    server.released_cards = []
    await beat.beat()
    assert released == ["GPU-1"] * 2


@pytest.mark.req("OPS-04")
async def test_every_request_has_an_id_by_which_the_servers_log_has_it(
    server: FakeServer, client: ServerClient
) -> None:
    one = TaskReport(1, "task-a", 1, Phase.READY, Observed.READY)
    await client.report(ReportRequest("run", [one]))
    ids = [
        one for headers in server.headers for name, one in headers.items() if name.lower() == "x-request-id"
    ]
    assert len(ids) == len(set(ids)) >= 2 and all(each.startswith("req-") for each in ids)
    server.always["reports"] = lambda _: refuse(400, "invalid")
    with pytest.raises(ServerRefused) as refused:
        await client.report(ReportRequest("run", [one]))
    assert refused.value.request_id == server.headers[-1]["X-Request-ID"]


@pytest.mark.req("AGENT-01", "SCHED-03")
async def test_while_docker_is_silent_a_node_offers_no_engine(
    server: FakeServer, client: ServerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = heartbeat(client, tmp_path, DesiredList(), engine_probe_heartbeats=100)
    said = []
    for silent in (False, True, False):
        monkeypatch.setattr(Readings, "silent", silent)
        await beat.beat()
        said.append((server.heartbeats[-1].runtime_silent, bool(server.heartbeats[-1].engines)))
    assert said == [(False, True), (True, False), (False, True)]
