"""Requests that a connection knows again by their head, and calls that run without a task."""

import aiohttp
import pytest

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io import straight
from apps.gateway.plane.io.caller import Caller
from apps.gateway.plane.io.connection import Connection
from apps.gateway.plane.io.listener import Listener
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.straight import Head, Straight
from apps.usage.record import Ending
from tests.apps.gateway.test_listener import Echo, feed, settle, statuses
from tests.fakes.gateway import BODY, RunningGateway, until
from tests.fakes.transport import FakeTransport

pytestmark = pytest.mark.req("GW-01", "GW-15")


class Taking(Echo):
    """Begins every call that may be begun without a task, and answers it when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[Head, bytes]] = []
        self.replies: list[Reply] = []
        self.gone_ = 0

    def begin(self, head: Head, body: bytes, reply: Reply, carrier: object) -> "Taking":
        self.begun.append((head, body))
        self.replies.append(reply)
        return self

    def gone(self) -> None:
        self.gone_ += 1


def take() -> tuple[Caller, FakeTransport, Taking]:
    taking = Taking()
    caller, wire = Caller(Listener(taking, GatewayConfig())), FakeTransport()
    caller.connection_made(wire)
    return caller, wire, taking


def call(body: bytes, *more: bytes) -> bytes:
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: a", b"Authorization: Bearer sk-1", *more]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


async def test_a_head_that_was_read_before_is_known_again() -> None:
    caller, wire, taking = take()
    for body in (b"{}", b'{"longer": "than ten bytes"}', b"x"):
        await feed(caller, call(body))
        taking.replies[-1].whole(200, body)
    await settle()
    heads = {id(head) for head, _ in taking.begun}
    assert [body for _, body in taking.begun] == [b"{}", b'{"longer": "than ten bytes"}', b"x"]
    assert len(heads) == 2  # read twice, since a look at the first one came before it was learnt
    assert statuses(wire) == [200] * 3
    assert not taking.asked


@pytest.mark.parametrize(
    "other",
    [
        call(b"{}", b"X-HeteroFlow-Session: a"),
        call(b"{}").replace(b"sk-1", b"sk-2"),
        call(b"{}").replace(b"/v1/", b"/v2/"),
        call(b"{}", b"Connection: close"),
        call(b"{}", b"Content-Encoding: gzip"),
    ],
)
async def test_another_head_is_not_taken_for_the_known_one(other: bytes) -> None:
    caller, _, taking = take()
    for _ in range(2):
        await feed(caller, call(b"{}"))
        taking.replies[-1].whole(200, b"")
    known = taking.begun[-1][0]
    await feed(caller, other)
    assert taking.asked or taking.begun[-1][0] is not known
    assert not (taking.asked and len(taking.begun) > 2)


async def test_the_known_head_with_a_body_in_parts_or_with_more_behind_it() -> None:
    caller, wire, taking = take()
    await feed(caller, call(b"{}"))
    taking.replies[-1].whole(200, b"")
    await feed(caller, call(b'{"a": 1}')[:-3])
    assert len(taking.begun) == 1
    await feed(caller, b" 1}")
    assert [asked[2] for asked in taking.asked] == [b'{"a": 1}']  # it waits for its body in a task
    await feed(caller, call(b"[]") + call(b"[1]"))
    assert [body for _, body in taking.begun] == [b"{}", b"[]"]
    taking.replies[-1].whole(200, b"")
    await settle()
    assert taking.begun[-1][1] == b"[1]"
    assert statuses(wire) == [200] * 3


async def test_a_caller_that_leaves_a_call_without_a_task_is_told_to_it_once() -> None:
    caller, _, taking = take()
    await feed(caller, call(b"{}"))
    caller.connection_lost(None)
    await settle()
    assert (taking.gone_, taking.cancelled) == (1, 0)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to the replicas are there before the first call."""
    monkeypatch.setattr(RunningGateway, "shell", "warm")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ordinary_call_needs_no_task_and_leaves_nothing_behind(
    warm: None,
    gateway: RunningGateway,
    http: aiohttp.ClientSession,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed_over: list[Straight] = []
    monkeypatch.setattr(Straight, "_hand_over", lambda self: handed_over.append(self))
    monkeypatch.setattr(Straight, "_begin_stream", begin_with_first_event)
    for _ in range(3):
        async with http.post(gateway.url + "/v1/chat/completions", json={**BODY, "stream": stream}) as answer:
            assert answer.status == 200
            await answer.read()
    assert not handed_over
    await until(lambda: not gateway.app._parts.watch.watched())
    assert gateway.app.in_flight() == {}
    assert [record.ending for record in gateway.records()] == [Ending.COMPLETED] * 3


def begin_with_first_event(self: Straight, response: Connection) -> None:
    """As if the head had waited for the first event."""
    if pieces := response.taken():
        self._succeed()
        self._follow(response, self._scan(), pieces)


@pytest.mark.parametrize("what", ["build_upstream_body", "read_answer"])
async def test_what_fails_in_a_callback_is_made_good_by_a_task(
    warm: None,
    gateway: RunningGateway,
    http: aiohttp.ClientSession,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(straight, what, fail)
    async with http.post(gateway.url + "/v1/chat/completions", json=BODY) as answer:
        assert (answer.status, (await answer.json())["model"]) == (200, BODY["model"])
    (record,) = gateway.records()
    assert record.ending is Ending.COMPLETED
    await until(lambda: not gateway.app._parts.watch.watched())
    assert gateway.app.in_flight() == {}
