"""A head that was read before is known again by its bytes, all but the digits of its length."""

import pytest

from apps.gateway.plane.core.likeness import MOST_BYTES, learn

pytestmark = pytest.mark.req("GW-15")
HEAD = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: %b\r\nServer: x\r\n\r\n"


def message(length: bytes, body: bytes) -> bytes:
    return HEAD % length + body


def test_the_body_of_a_like_message_is_found_whatever_its_length() -> None:
    known = learn(message(b"2", b"{}"))
    assert known is not None
    for body in (b"", b"x", b"y" * 12_345):
        assert known.body(message(b"%d" % len(body), body)) == body


@pytest.mark.parametrize(
    "other",
    [
        message(b"2", b"{"),
        message(b"2", b"{} "),
        message(b"+2", b"{}"),
        message(b"2 ", b"{}"),
        message(b"0x2", b"{}"),
        message(b"", b""),
        message(b"1" * 10, b"{}"),
        message("\u0662".encode(), b"{}"),
        message(b"2", b"{}").replace(b"now", b"nov"),
        message(b"2", b"{}").replace(b"Server: x", b"Server: y"),
        message(b"2", b"{}").replace(b"Server: x", b"Server: x\r\nA: b"),
        message(b"2", b"{}").replace(b"Content-Length", b"content-length"),
        message(b"2", b"{}")[:40],
        b"",
    ],
)
def test_any_other_message_is_left_to_be_read(other: bytes) -> None:
    known = learn(message(b"2", b"{}"))
    assert known is not None
    assert known.body(other) is None


@pytest.mark.parametrize(
    "odd",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nContent-Length: 2\r\n\r\n",
        message(b"2", b"{}").replace(b"now", b"n" * MOST_BYTES),
    ],
)
def test_only_a_short_head_that_says_its_length_is_learnt(odd: bytes) -> None:
    assert learn(odd) is None
