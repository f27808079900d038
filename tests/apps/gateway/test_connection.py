"""One connection to a replica, byte by byte: the same body however it is split; what isn't HTTP, refused."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.io.connection import MOST_HELD_BYTES, Connection, Unreachable
from apps.gateway.plane.io.pool import Pool
from tests.fakes.gateway import make_replica
from tests.fakes.transport import FakeTransport

pytestmark = pytest.mark.req("GW-09", "GW-15")
BODY = 'data: {"a":"ü\u2028\U0001f600"}\r\n\r\ndata: [DONE]\n\n'.encode()


def chunked(body: bytes, *, extension: bytes = b"", trailer: bytes = b"", size: int = 7) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return framed + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def said(head: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\n" + head + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = said(b"Content-Length: %d\r\n" % len(BODY), BODY)
KEPT = {
    "by length": WHOLE,
    "in chunks": said(CHUNKED, chunked(BODY)),
    "chunk extensions": said(CHUNKED, chunked(BODY, extension=b';name="a;b"')),
    "trailers": said(CHUNKED, chunked(BODY, trailer=b"X-Sum: 1\r\n")),
    "informed first": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE,
}


async def begin() -> tuple[Connection, FakeTransport, Pool]:
    pool = Pool(make_replica(1), GatewayConfig())
    connection, wire = Connection(pool), FakeTransport()
    connection.connection_made(wire)
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")
    return connection, wire, pool


async def read(connection: Connection) -> bytes:
    got = bytearray()
    await connection.head()
    await connection.pump(got.extend)
    return bytes(got)


async def hear(connection: Connection, pieces: list[bytes], *, then_ends: bool = False) -> bytes:
    reading = asyncio.create_task(read(connection))
    for piece in pieces:
        await asyncio.sleep(0)
        connection.data_received(piece)
    if then_ends:
        connection.connection_lost(None)
    return await reading


@pytest.mark.parametrize("how", KEPT)
async def test_split_at_every_place_it_is_the_same(how: str) -> None:
    response = KEPT[how]
    for at in range(1, len(response)):
        connection, wire, pool = await begin()
        assert await hear(connection, [response[:at], response[at:]]) == BODY
        assert (connection.status, connection.content_type) == (200, b"text/event-stream")
        connection.close()
        assert pool.take() is connection and not wire.gone


@given(st.sampled_from(sorted(KEPT)), st.lists(st.integers(1, 400), max_size=12))
def test_split_at_many_places_it_is_the_same(how: str, cuts: list[int]) -> None:
    response = KEPT[how]
    edges = [0, *sorted({cut for cut in cuts if cut < len(response)}), len(response)]
    pieces = [response[begin:end] for begin, end in pairwise(edges)]

    async def heard() -> bytes:
        connection, _, _ = await begin()
        return await hear(connection, pieces)

    assert asyncio.run(heard()) == BODY


async def test_an_answer_with_a_head_as_before_is_as_whole_as_any() -> None:
    for body in (BODY, b"x", BODY * 9):
        response = said(b"Content-Length: %d\r\n" % len(body), body)
        connection, wire, pool = await begin()
        for _ in range(3):  # read, learnt, known
            assert await hear(connection, [response]) == body
            assert (connection.status, connection.content_type) == (200, b"text/event-stream")
            connection.close()
            assert pool.take() is connection and not wire.gone
            connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")
        # Another length, and then what is no like answer.
        assert await hear(connection, [said(b"Content-Length: 2\r\n", b"{}")]) == b"{}"
        connection.close()
        connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")
        assert await hear(connection, [WHOLE[:70], WHOLE[70:]]) == BODY
        connection.close()
        connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")
        assert await hear(connection, [response + b"HTTP/1.1 200 OK\r\n"]) == body
        connection.close()
        assert wire.gone  # it said more than was asked


async def test_a_body_without_length_ends_with_its_connection_and_is_not_kept() -> None:
    connection, _, pool = await begin()
    assert await hear(connection, [said(b"", BODY)], then_ends=True) == BODY
    connection.close()
    assert pool.take() is None


@pytest.mark.parametrize("ending", [b"Connection: close\r\n", b""])
async def test_what_must_not_serve_again_is_closed(ending: bytes) -> None:
    connection, wire, pool = await begin()
    more = b"" if ending else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"  # an answer to nothing
    response = said(ending + b"Content-Length: %d\r\n" % len(BODY), BODY + more)
    assert await hear(connection, [response]) == BODY
    connection.close()
    assert wire.gone and pool.take() is None


SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("how", KEPT)
async def test_a_byte_beyond_the_end_of_an_answer_ends_the_connection(how: str) -> None:
    """However much of it came at once with the end, and however the rest."""
    for at in range(1, len(SECOND) + 1):
        connection, wire, pool = await begin()
        assert await hear(connection, [KEPT[how] + SECOND[:at]]) == BODY
        connection.close()
        assert wire.gone and pool.take() is None
    connection, wire, pool = await begin()
    assert await hear(connection, [KEPT[how]]) == BODY
    connection.data_received(SECOND)
    assert connection.whole() == b""
    connection.close()
    assert wire.gone and pool.take() is None


async def test_a_kept_connection_that_speaks_unasked_is_closed() -> None:
    connection, wire, pool = await begin()
    await hear(connection, [WHOLE])
    connection.close()
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert wire.gone and pool.take() is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
async def test_what_is_not_http_is_refused(garbage: bytes) -> None:
    connection, wire, _ = await begin()
    with pytest.raises(CallError) as fault:
        await hear(connection, [garbage])
    assert (fault.value.status, fault.value.code) == (502, "upstream_unreadable")
    assert wire.gone


@pytest.mark.parametrize(
    "broken", [said(CHUNKED, b"5\r\nab"), said(CHUNKED, b"zz\r\n"), said(b"Content-Length: 9\r\n", b"ab")]
)
async def test_what_ends_too_early_is_told_as_broken_off(broken: bytes) -> None:
    connection, _, _ = await begin()
    with pytest.raises(CallError) as fault:
        await hear(connection, [broken], then_ends=True)
    assert fault.value.code == "upstream_truncated"


async def test_only_what_ends_before_any_byte_may_be_repeated() -> None:
    connection, _, _ = await begin()
    with pytest.raises(Unreachable) as failure:
        await hear(connection, [], then_ends=True)
    assert not failure.value.refused
    connection, _, _ = await begin()
    with pytest.raises(CallError):
        await hear(connection, [b"HTTP/1."], then_ends=True)


async def test_a_slow_taker_slows_the_reading() -> None:
    connection, wire, _ = await begin()
    free = asyncio.Event()
    got = bytearray()

    def take(piece: bytes) -> Awaitable[Any]:
        got.extend(piece)
        return free.wait()

    connection.data_received(said(b"Content-Length: 1000000\r\n", b""))
    await connection.head()
    pumping = asyncio.create_task(connection.pump(take))
    held = 0
    while not wire.paused:
        await asyncio.sleep(0)
        connection.data_received(b"x" * 10_000)
        held += 10_000
    assert held <= MOST_HELD_BYTES + 20_000
    free.set()
    while held < 1_000_000:
        await asyncio.sleep(0)
        assert not wire.paused
        connection.data_received(b"x" * 10_000)
        held += 10_000
    await pumping
    assert len(got) == 1_000_000


async def test_what_the_taker_raises_comes_out_at_once() -> None:
    connection, _, _ = await begin()

    def take(piece: bytes) -> None:
        raise CallError(502, piece.decode())

    connection.data_received(said(b"Content-Length: 9\r\n", b""))
    await connection.head()
    pumping = asyncio.create_task(connection.pump(take))
    await asyncio.sleep(0)
    connection.data_received(b"a")
    with pytest.raises(CallError, match="a"):
        await pumping
