"""What a connection has learnt of one head changes nothing of what the next request is read as (GW-15)."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.caller import Caller
from apps.gateway.plane.io.connection import Unreachable
from apps.gateway.plane.io.listener import Listener
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.straight import Head
from tests.apps.gateway.test_connection import begin, hear
from tests.apps.gateway.test_listener import settle, statuses
from tests.examples import examples
from tests.fakes.transport import FakeTransport

pytestmark = pytest.mark.req("GW-15")
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n"


class Both:
    """Answers with what it was asked, straight where it is let; `straight` counts how often."""

    def __init__(self, *, lets: bool) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.straight = 0
        self._lets = lets

    def write_records(self) -> None:
        """Nothing is recorded here."""

    def begin(self, head: Head, body: bytes, reply: Reply, carrier: object) -> "Both | None":
        if not self._lets:
            return None
        self.straight += 1
        self.asked.append((head.path, body))
        reply.whole(200, body)
        return self

    def gone(self) -> None:
        raise AssertionError("it was answered at once")

    async def answer(self, asked: Asked, reply: Reply) -> None:
        body = asked.ready(10_000)
        if body is None:
            body = await asked.body(10_000, lambda size: None)
        self.asked.append((asked.path, body))
        reply.whole(200, body)


async def read_as(pieces: list[bytes], *, lets: bool) -> tuple[list[tuple[str, bytes]], list[int], bool, int]:
    gateway = Both(lets=lets)
    caller, wire = Caller(Listener(gateway, GatewayConfig())), FakeTransport()
    caller.connection_made(wire)
    for piece in pieces:
        if not wire.gone:
            caller.data_received(piece)
            await settle()
    for _ in pieces:
        await settle()
    return gateway.asked, statuses(wire), wire.gone or wire.shut, gateway.straight


LENGTHS = st.sampled_from(
    [
        b"2",
        b"02",
        b"+2",
        b"2 ",
        b" 2",
        b"\t2",
        b"2,2",
        b"2\r\nContent-Length: 2",
        b"0",
        b"36",
        b"000000002",
        b"2a",
        b"",
    ]
)
HEADS = st.sampled_from(
    [
        b"",
        b"X: 1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"X: 1\n",
    ]
)
BODIES = st.sampled_from([b"{}", b"{}" + HIDDEN, HIDDEN, b"{", b"", b"0\r\n\r\n", b"{}\r\n", b"\r\n{}"])
REQUESTS = st.builds(
    lambda before, name, length, after, body: (
        b"%b%b%b: %b\r\n%b\r\n%b" % (LINE, before, name, length, after, body)
    ),
    HEADS,
    st.sampled_from([b"Content-Length"] * 4 + [b"content-length", b"Content-length", b"CONTENT-LENGTH"]),
    LENGTHS,
    HEADS,
    BODIES,
)
LIKE = st.builds(
    lambda length, body: b"%bContent-Length: %b\r\n\r\n%b" % (LINE, length, body), LENGTHS, BODIES
)
ORDINARY = LINE + b"Content-Length: 2\r\n\r\n{}"


@settings(max_examples=examples(800), deadline=None)
@given(st.lists(st.one_of(st.just(ORDINARY), LIKE, LIKE.map(lambda said: said[:-1]), REQUESTS), max_size=6))
def test_whatever_was_learnt_the_same_is_read(pieces: list[bytes]) -> None:
    async def compare() -> None:
        learnt, plain = await read_as(pieces, lets=True), await read_as(pieces, lets=False)
        assert learnt[:3] == plain[:3]

    asyncio.run(compare())


async def test_an_ordinary_request_goes_straight_each_time() -> None:
    asked, answered, ended, straight = await read_as([ORDINARY] * 4, lets=True)
    assert (asked, answered, ended) == ([("/v1/chat/completions", b"{}")] * 4, [200] * 4, False)
    assert straight == 4


SAID = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ORDINARY_ANSWER = SAID + b"Content-Length: 2\r\n\r\n{}"
SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
ANSWERS = st.builds(
    lambda before, length, body: b"%b%bContent-Length: %b\r\n\r\n%b" % (SAID, before, length, body),
    st.one_of(st.just(b""), HEADS),
    LENGTHS,
    st.sampled_from([b"{}", b"", b"{", b"{}x", b"{}" + SECOND, SECOND, b"{}\r\n"]),
)


async def heard_as(answers: list[list[bytes]], *, learns: bool) -> list[object]:
    """Each answer on a connection of its own, of one pool: what was read, and whether it may serve again."""
    found: list[object] = []
    known = None
    for pieces in answers:
        connection, _, pool = await begin()
        pool.known = known if learns else None
        try:
            read: object = await hear(connection, pieces, then_ends=True)
        except CallError as fault:
            read = fault.code
        except Unreachable:
            read = "unreachable"
        kept = connection._keep
        found.append((connection.status, connection.content_type, read, kept))
        known = pool.known
    return found


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.just([ORDINARY_ANSWER]),
            ANSWERS.map(lambda said: [said]),
            ANSWERS.map(lambda said: [said[:-1], said[-1:]]),
        ),
        max_size=5,
    )
)
def test_of_an_engine_too(answers: list[list[bytes]]) -> None:
    async def compare() -> None:
        assert await heard_as(answers, learns=True) == await heard_as(answers, learns=False)

    asyncio.run(compare())
