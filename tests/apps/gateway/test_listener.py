"""The bare listener, byte by byte: a request is one however it is split, none if it can be read twofold."""

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.io.arriving import UNASKED_BYTES
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.caller import Caller
from apps.gateway.plane.io.listener import Listener
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.watch import NEVER
from tests.fakes.transport import FakeTransport

pytestmark = pytest.mark.req("GW-01", "GW-15")
BODY = '{"model":"ü\u2028"}'.encode()
HEAD = (
    b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\n"
    b"X-Two: 1\r\nAuthorization: Bearer k\r\nx-two: 2\r\n"
)
BY_LENGTH = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
IN_CHUNKS = (
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b'1;q="x;y"\r\n%c\r\n' % byte for byte in BODY)
    + b"0\r\nX-Trailer: 1\r\n\r\n"
)


class Echo:
    """Keeps what was asked, and answers with its body; waits for `free` first."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes, dict[bytes, bytes]]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.cancelled = 0

    def write_records(self) -> None:
        """Nothing is recorded here."""

    def begin(self, *_: object) -> None:
        """No call is begun without a task."""

    async def answer(self, asked: Asked, reply: Reply) -> None:
        try:
            body = asked.ready(1_000_000)
            if body is None:
                body = await asked.body(1_000_000, lambda size: None)
            self.asked.append((asked.method, asked.path, body, dict(asked.headers)))
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except CallError as fault:
            reply.error(fault)
        else:
            reply.whole(200, body)


def connect(**settings: Any) -> tuple[Caller, FakeTransport, Echo]:
    echo = Echo()
    caller, wire = Caller(Listener(echo, GatewayConfig(**settings))), FakeTransport()
    caller.connection_made(wire)
    return caller, wire, echo


async def feed(caller: Caller, *pieces: bytes) -> None:
    for piece in pieces:
        caller.data_received(piece)
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def statuses(wire: FakeTransport) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", wire.written)]


@pytest.mark.parametrize("request_", [BY_LENGTH, IN_CHUNKS], ids=["by length", "in chunks"])
async def test_split_at_every_place_it_is_the_same(request_: bytes) -> None:
    for at in range(1, len(request_)):
        caller, wire, echo = connect()
        await feed(caller, request_[:at], request_[at:])
        ((method, path, body, headers),) = echo.asked
        assert (method, path, body) == ("POST", "/v1/chat/completions", BODY)
        assert (headers[b"x-two"], headers[b"authorization"]) == (b"1, 2", b"Bearer k")
        assert statuses(wire) == [200] and wire.written.endswith(BODY) and not wire.gone


@given(st.lists(st.integers(1, 900), max_size=10))
def test_pipelined_and_split_anywhere_all_are_answered_in_order(cuts: list[int]) -> None:
    sent = BY_LENGTH + IN_CHUNKS + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    edges = [0, *sorted({cut for cut in cuts if cut < len(sent)}), len(sent)]

    async def answered() -> None:
        caller, wire, echo = connect()
        await feed(caller, *(sent[begin:end] for begin, end in pairwise(edges)))
        await settle()
        assert [path for _, path, _, _ in echo.asked] == ["/v1/chat/completions"] * 2 + ["/v1/models"]
        assert statuses(wire) == [200] * 3

    asyncio.run(answered())


LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "twofold",
    [
        LINE + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        LINE + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
        LINE + b"Content-Length: 4, 4\r\n\r\nabcd",
        LINE + b"Content-Length: +4\r\n\r\nabcd",
        LINE + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        LINE + b'Transfer-Encoding: chunked\r\n\r\n1;"a\r\nx\r\n0\r\n\r\n',
        LINE + b"Transfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n4\nabcd\n0\n\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        LINE.replace(b"\r\n", b"\n") + b"\n",
        LINE + b"X: a\nContent-Length: 0\r\n\r\n",
        LINE + b"X: a\r\n b\r\n\r\n",
        LINE + b"Content-Length : 4\r\n\r\nabcd",
        LINE + b"X: a\x00b\r\n\r\n",
        LINE + b"Host: y\r\n\r\n",
        LINE + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/2.0\r\n\r\n",
        LINE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused_and_ends_the_connection(twofold: bytes) -> None:
    caller, wire, echo = connect()
    await feed(caller, twofold, BY_LENGTH)
    assert statuses(wire) == [400]
    error = json.loads(wire.written.rsplit(b"\r\n\r\n", 1)[1])["error"]
    assert error["code"] == "invalid_http" and b"connection: close" in wire.written
    assert wire.shut or wire.gone
    assert [body for _, _, body, _ in echo.asked if body == BODY] == []


WORDS = [
    *(
        b"POST / HTTP/1.1\r\n",
        b"GET /v1/models HTTP/1.0\r\n",
        b"Host: x\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\x00",
    ),
    *(
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"abc",
        b";",
    ),
]


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=20)), max_size=25))
def test_whatever_comes_is_answered_in_order_and_what_is_refused_is_the_last(pieces: list[bytes]) -> None:
    async def heard() -> None:
        caller, wire, echo = connect()
        for piece in pieces:
            if not wire.gone:  # a closed socket hears nothing
                await feed(caller, piece)
        for _ in pieces:
            await settle()
        said = statuses(wire)
        assert said.count(200) == len(echo.asked) and set(said[:-1]) <= {200}
        assert said[-1:] in ([], [200]) or ((wire.shut or wire.gone) and 400 <= said[-1] < 500)

    asyncio.run(heard())


@pytest.mark.parametrize(
    "lines", [b"X: 1\r\n" * 98, b"".join(b"X-%d: 1\r\n" % number for number in range(98))]
)
async def test_a_hundred_lines_are_taken_and_one_more_is_not(lines: bytes) -> None:
    for more, expected in ((b"", 200), (b"X: 2\r\n", 431)):
        caller, wire, _ = connect()
        await feed(caller, LINE + b"Content-Length: 0\r\n" + lines + more + b"\r\n")
        assert statuses(wire) == [expected]


@pytest.mark.parametrize(
    "flood",
    [
        b"X: " + b"y" * 40_000 + b"\r\n",
        b"".join(b"X-%d: 1\r\n" % number for number in range(200)),
    ],
)
async def test_too_much_of_a_head_is_431(flood: bytes) -> None:
    caller, wire, echo = connect()
    await feed(caller, LINE, flood, b"\r\n")
    assert statuses(wire) == [431] and echo.asked == []
    caller, wire, _ = connect()
    await feed(caller, LINE, *([b"X-Long: "] + [b"z" * 1000] * 40))
    assert statuses(wire) == [431]


CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


@pytest.mark.parametrize(
    "flood", [(b"0\r\n", b"X: " + b"y" * 997 + b"\r\n"), (b"0\r\nX: ", b"y" * 1000), (b"1;", b"y" * 1000)]
)
async def test_what_stands_around_a_body_is_bounded_like_a_head(flood: tuple[bytes, bytes]) -> None:
    caller, wire, echo = connect()
    await feed(caller, CHUNKED, flood[0], *[flood[1]] * 32)
    assert statuses(wire) == []
    await feed(caller, *[flood[1]] * 2)
    assert statuses(wire) == [431] and echo.asked == [] and wire.shut


async def test_a_long_body_in_small_parts_is_no_flood() -> None:
    caller, wire, echo = connect()
    await feed(caller, CHUNKED, *[b"3\r\n", b"abc\r\n2\r\nde\r\n"] * 4000, b"0\r\n\r\n")
    assert statuses(wire) == [200] and echo.asked[0][2] == b"{}" + b"abcde" * 4000


async def test_a_trailer_is_no_header() -> None:
    caller, _wire, echo = connect()
    await feed(caller, CHUNKED + b"0\r\nAuthorization: Bearer k\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n")
    assert set(echo.asked[0][3]) == {b"host", b"transfer-encoding"}


async def test_whoever_sends_a_head_drop_by_drop_is_ended_in_time() -> None:
    caller, wire, _ = connect(head_timeout_s=5)
    await feed(caller, LINE)
    due = caller.due
    await feed(caller, b"X: 1\r\n", b"Y: 2\r\n")
    assert caller.due == due  # what comes meanwhile wins no time
    caller.overdue()
    await settle()
    assert statuses(wire) == [408] and wire.shut
    caller.overdue()
    assert wire.gone


async def test_a_head_that_waits_for_the_answer_before_it_is_not_slow() -> None:
    caller, wire, echo = connect()
    echo.free.clear()
    await feed(caller, BY_LENGTH + BY_LENGTH + LINE)
    caller.overdue()
    echo.free.set()
    await settle()
    await feed(caller, b"\r\n")
    await settle()
    assert statuses(wire) == [200, 200, 200] and caller.due < NEVER


async def test_whoever_asks_nothing_is_ended_without_a_word() -> None:
    caller, wire, _ = connect()
    caller.overdue()
    assert wire.gone and wire.written == b""


async def test_pipelining_is_bounded() -> None:
    caller, wire, echo = connect(waiting_requests=3)
    echo.free.clear()
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    await feed(caller, ask, ask)
    assert wire.paused  # no more is read than can be answered
    await feed(caller, ask * 9)
    echo.free.set()
    await settle()
    await settle()
    assert statuses(wire) == [200, 200, 200, 200, 400] and len(echo.asked) == 4


async def test_whoever_reads_nothing_is_answered_no_further() -> None:
    caller, wire, echo = connect(waiting_requests=99)
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    caller.pause_writing()
    await feed(caller, ask * 5)
    assert wire.paused and echo.asked == []
    caller.resume_writing()
    for _ in range(5):
        await settle()
    assert len(echo.asked) == 5 and not wire.paused
    caller.pause_writing()
    await feed(caller, ask)
    assert wire.paused and caller.due < NEVER
    caller.overdue()
    assert wire.gone and len(echo.asked) == 5


async def test_a_body_that_nobody_has_asked_for_yet_is_not_taken_in() -> None:
    caller, wire, echo = connect()
    before = asyncio.Event()
    answer = echo.answer

    async def later(asked: Asked, reply: Reply) -> None:
        await before.wait()
        await answer(asked, reply)

    echo.answer = later  # type: ignore[method-assign]
    size = 2 * UNASKED_BYTES
    await feed(caller, LINE + b"Content-Length: %d\r\n\r\n" % size, b"x" * (UNASKED_BYTES + 1))
    assert wire.paused
    before.set()
    await settle()
    assert not wire.paused
    await feed(caller, b"x" * (UNASKED_BYTES - 1))
    assert statuses(wire) == [200] and len(echo.asked[0][2]) == size


async def test_a_caller_that_leaves_is_noticed_at_once() -> None:
    caller, _wire, echo = connect()
    echo.free.clear()
    await feed(caller, BY_LENGTH)
    caller.connection_lost(None)
    await settle()
    assert echo.cancelled == 1


async def test_who_expects_to_be_told_to_go_on_is_told() -> None:
    caller, wire, echo = connect()
    await feed(caller, HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await feed(caller, BODY)
    assert statuses(wire) == [100, 200] and echo.asked[0][2] == BODY
    caller, wire, _ = connect()
    await feed(caller, b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert statuses(wire) == [], "who speaks HTTP/1.0 knows of no going on"


@pytest.mark.parametrize(
    ("head", "stays"),
    [
        (b"HTTP/1.1\r\nHost: x\r\n", True),
        (b"HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", False),
        (b"HTTP/1.0\r\n", False),
        (b"HTTP/1.0\r\nConnection: keep-alive\r\n", False),
    ],
)
async def test_the_connection_stays_as_was_asked(head: bytes, stays: bool) -> None:
    caller, wire, _ = connect()
    await feed(caller, b"GET /v1/models " + head + b"\r\n")
    assert statuses(wire) == [200]
    assert wire.gone is not stays and (b"connection: close" in wire.written) is not stays


async def test_an_answer_before_the_bodys_end_can_be_read() -> None:
    caller, wire, echo = connect()

    async def at_once(asked: Asked, reply: Reply) -> None:
        reply.whole(413, b"{}")

    echo.answer = at_once  # type: ignore[method-assign]
    await feed(caller, LINE + b"Content-Length: 9000000\r\n\r\n", b"x" * 100, b"y" * 100)
    assert statuses(wire) == [413] and b"connection: close" in wire.written
    assert (
        wire.shut and not wire.gone
    )  # what still comes is read and dropped, so that no reset eats the answer
    caller.overdue()
    assert wire.gone


async def test_draining_ends_idle_connections_now_and_busy_ones_with_their_answer() -> None:
    idle, idle_wire, _ = connect()
    caller, wire, echo = connect()
    echo.free.clear()
    await feed(caller, BY_LENGTH)
    for one in (idle, caller):
        one._listener.drain()
    assert idle_wire.gone and not wire.gone
    echo.free.set()
    await settle()
    assert statuses(wire) == [200] and wire.gone


async def test_a_head_is_asked_without_its_body() -> None:
    caller, wire, _ = connect()
    await feed(caller, b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert wire.written.endswith(b"\r\n\r\n")
