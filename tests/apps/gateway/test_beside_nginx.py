"""The same bytes to our listener, to Debian's nginx, and by our front proxy: what is refused, and never two
requests where the proxy saw one (GW-15)."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.stream import DONE_EVENT
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.listener import Listener, bind
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.waiting import HEARTBEAT
from tests.examples import examples
from tests.fakes import torture
from tests.fakes.nginx import front_proxy
from tests.fakes.torture import HIDDEN, IN_CHUNK, LAST, LINE, SHAPES, SIZE, Seen, plain_nginx, say
from tests.stack import free_port

pytestmark = [pytest.mark.slow, pytest.mark.req("GW-15")]
TAKEN, REFUSED = "taken", "refused"

# Wherever we differ from nginx, and why. What we alone refuse could be read in two ways, and another than
# nginx may stand before us.
STRICTER = {
    "a space behind a chunk's size": "RFC 9112 has none there",
    "a chunk that is shorter than its size": "its end is a bare LF",
    "a bare LF behind a chunk's size": "RFC 9112 wants CR LF there, with no way around",
    "a bare LF behind a chunk": "the same",
    "a bare LF at the end": "the same",
    "a trailer without a colon": "no trailer is one",
    "a length in the trailers": "it says where a body ends, and the body has ended",
    "bare LF": "a header's end for some, a part of its value for others",
    "one bare LF": "the same",
    "a bare LF behind the request": "the same",
    "a control in a value": "RFC 9110 has none there",
    "a name of other letters": "no token; nginx drops such headers, others pass them on",
    "a name with a bracket": "the same",
    "a header without a colon": "the same",
    "a host with a user": "RFC 9110 has none there",
    "an upgrade": "we speak nothing else; our front proxy takes the wish away",
    "HTTP/2 asked for": "the same",
    "HTTP/0.9": "an answer without a status tells nobody anything",
    "HTTP/1.2": "nobody has said what it is",
    "HTTP/1.10": "the same",
    "a space behind the version": "RFC 9112 has none there",
    "many lines": "100 are enough for every client that there is",
}
LOOSER = {
    "a tab behind a length": "RFC 9110: spaces and tabs around a value are none of it",
}


class Doors(NamedTuple):
    """Where requests go in: `sock` is the listener's own, which each test takes for itself."""

    sock: socket.socket
    plain: int
    front: int

    @property
    def listener(self) -> int:
        return int(self.sock.getsockname()[1])


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("nginx")
    sock, front = bind("127.0.0.1", 0), free_port()
    port = sock.getsockname()[1]
    with (
        sock,
        plain_nginx(folder / "plain", port) as plain,
        front_proxy(folder, host="127.0.0.1", port=front, server_port=port),
    ):
        yield Doors(sock, plain, front)


def own_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def listen(doors: Doors) -> tuple[Seen, Listener]:
    """Also waits for both proxies, that may be starting still."""
    seen = Seen()
    listener = Listener(seen, GatewayConfig())
    await listener.start(doors.sock.dup())
    async with asyncio.timeout(30):
        for port, tls in ((doors.plain, None), (doors.front, own_tls())):
            while True:
                try:
                    if (await say(port, LAST, context=tls))[0] == [200]:
                        break
                except OSError:
                    await asyncio.sleep(0.02)
    seen.asked.clear()
    return seen, listener


@pytest.fixture
async def seen(doors: Doors) -> AsyncIterator[Seen]:
    seen, listener = await listen(doors)
    yield seen
    listener.stop()


def verdict(statuses: list[int]) -> str:
    """A request is taken where the one behind it is answered too; what is refused ends its connection."""
    return TAKEN if len(statuses) > 1 and statuses[-1] == 200 else REFUSED


async def test_what_is_refused_is_what_nginx_refuses_and_a_little_more(doors: Doors, seen: Seen) -> None:
    found, different = {}, {}
    for name, said in SHAPES.items():
        ours, _ = await say(doors.listener, said + LAST)
        theirs, answered = await say(doors.plain, said + LAST)
        found[name] = verdict(ours)
        # It has answered HTTP/0.9 without a status.
        nginx = TAKEN if answered and not theirs else verdict(theirs)
        if found[name] != nginx:
            different[name] = found[name]
        assert len(ours) > 0, f"{name}: refused without a word"
        assert found[name] == TAKEN or all(400 <= status < 500 for status in ours[-1:]), name
    assert different == {**dict.fromkeys(STRICTER, REFUSED), **dict.fromkeys(LOOSER, TAKEN)}
    assert {name for name, said in found.items() if said == TAKEN} == {
        *list(SHAPES)[: torture.IN_ORDER],
        *LOOSER,
        "a header that looks like it",
        "two spaces before the version",
        "a host with a port",
    }


async def test_by_the_front_proxy_no_request_hides_in_another(doors: Doors, seen: Seen) -> None:
    """Whatever it takes for one request is one here: what was asked is what it has an answer for."""
    tls = own_tls()
    for name, said in SHAPES.items():
        seen.asked.clear()
        statuses, answered = await say(doors.front, said + LAST, context=tls)
        asked = [path for _, path, _ in seen.asked]
        assert answered == asked[: len(answered)], name
        assert len(asked) == len(answered), f"{name}: {asked} of which the proxy knows {answered}"
        if "/v1/hidden" in asked:
            assert len(statuses) == 3, f"{name}: it was no request of its own"


class Beating:
    """Says a heartbeat, and what comes after it once that was heard."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def answer(self, asked: Asked, reply: Reply) -> None:
        await asked.body(100, lambda size: None)
        reply.stream(HEARTBEAT)
        await self.heard.wait()
        reply.stream(DONE_EVENT, last=True)


async def test_a_heartbeat_gets_through_the_front_proxy_at_once(doors: Doors) -> None:
    _, listener = await listen(doors)
    listener.gateway = beating = Beating()
    reader, writer = await asyncio.open_connection("127.0.0.1", doors.front, ssl=own_tls())
    writer.write(torture.by_length(b"2", b"{}"))
    async with asyncio.timeout(30):
        await reader.readuntil(HEARTBEAT)
        beating.heard.set()
        await reader.readuntil(DONE_EVENT)
    writer.close()
    listener.stop()


HEADS = st.sampled_from(
    [
        b"Content-Length: " + SIZE,
        b"Content-Length: 0",
        b"Content-Length: +0",
        b"content-length:" + SIZE + b"\t",
        b"Content-Length: " + SIZE + b"\r\n ,0",
        b"Content-Length\t: 0",
        b"Content_Length: 0",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding:\tCHUNKED ",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding\r\n : chunked",
        b"X: y\nTransfer-Encoding: chunked",
        b"X: y\rContent-Length: 0",
        b"Transfer_Encoding: chunked",
        b"Connection: Content-Length",
        b"Connection: Transfer-Encoding, keep-alive",
        b"Expect: 100-continue",
        b"X-Long: " + b"x" * 500,
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"{}",
        HIDDEN,
        IN_CHUNK,
        b"0\r\n\r\n" + HIDDEN,
        b"0\r\nX: 1\r\n\r\n" + HIDDEN,
        b"0\n\n" + HIDDEN,
        b"2\r\n{}\r\n0\r\n\r\n",
        b'2;a="\r\n"\r\n{}\r\n0\r\n\r\n',
        b"2\r\n{}\r\n00000000000000000\r\n\r\n" + HIDDEN,
        b"2\r\n{}\n0\r\n\r\n" + HIDDEN,
    ]
)
REQUESTS = st.builds(
    lambda line, heads, body: line + b"".join(head + b"\r\n" for head in heads) + b"\r\n" + body,
    st.sampled_from([LINE, LINE.replace(b"1.1", b"1.0"), LINE.replace(b"POST", b"GET")]),
    st.lists(HEADS, max_size=3),
    BODIES,
)


def test_both_read_the_same_requests_whatever_is_put_together(doors: Doors) -> None:
    """As far as both take them they are the same, with the same bodies. And by the front proxy each request
    has its own answer."""
    tls = own_tls()
    with asyncio.Runner() as runner:
        seen, listener = runner.run(listen(doors))

        async def judge(said: bytes, cuts: list[int]) -> None:
            edges = [0, *sorted(cut % len(said) for cut in cuts), len(said)]
            pieces = [said[begin:end] for begin, end in pairwise(edges)]
            seen.asked.clear()
            ours, _ = await say(doors.listener, *pieces)
            direct = list(seen.asked)
            seen.asked.clear()
            theirs, answered = await say(doors.front, *pieces, context=tls)
            by_proxy = list(seen.asked)
            assert [path for _, path, _ in by_proxy] == answered
            both = min(len(direct), len(by_proxy))
            assert direct[:both] == by_proxy[:both], (ours, theirs)

        @settings(max_examples=examples(400), deadline=None)
        @given(st.lists(REQUESTS, min_size=1, max_size=3), st.lists(st.integers(0, 5000), max_size=3))
        def try_many(requests: list[bytes], cuts: list[int]) -> None:
            runner.run(judge(b"".join(requests) + LAST, cuts))

        try:
            try_many()
        finally:
            listener.stop()
            runner.run(asyncio.sleep(0))
