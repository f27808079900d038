"""Passing like events at once changes nothing: bytes, counts and endings are as if each had been read."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core import stream
from apps.gateway.plane.core.stream import StreamScanner

pytestmark = pytest.mark.req("GW-05", "GW-09", "GW-15")
TEXTS = st.one_of(
    st.sampled_from(
        ["", " token", "ü", "\u2028", "\U0001f600", '"', "\\", "\n\ndata: [DONE]\n\n", '"content":"', "}]}"]
    ),
    st.text(max_size=6),
)
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"])


@st.composite
def events(draw: st.DrawFn) -> str:
    """One event of an engine: mostly like the others, now and then of another kind."""
    kind = draw(st.sampled_from(["text"] * 6 + ["null usage", "odd"]))
    if kind == "odd":
        return draw(
            st.sampled_from(
                [
                    ": still working\n\n",
                    'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
                    'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n',
                    'data: {"error":{"message":"no","code":500}}\n\n',
                    "data: not json\n\n",
                    "event: x\ndata: {\ndata: }\n\n",
                    "data: [DONE]\n\n",
                ]
            )
        )
    name = draw(st.sampled_from(["content"] * 5 + ["reasoning_content", "tool_calls"]))
    delta = {name: draw(TEXTS)} if name != "tool_calls" else {name: [{"id": draw(TEXTS)}]}
    if draw(st.integers(0, 9)) == 0:
        delta["role"] = "assistant"
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    told = {"id": "x", "model": draw(st.sampled_from(["engine"] * 5 + ["caller"])), "choices": [choice]}
    if kind == "null usage":
        told["usage"] = None
    text = json.dumps(told, ensure_ascii=draw(st.booleans()), separators=(",", ":"))
    return f"data: {text}{draw(ENDS) if draw(st.integers(0, 9)) == 0 else chr(10) * 2}"


def scan(pieces: list[bytes], *, hide: bool, lessons: int, together: bool = False) -> tuple[object, ...]:
    scanner = StreamScanner("caller", hide_usage=hide, max_event_bytes=4096)
    scanner._lessons = lessons
    if together:
        out = scanner.feed_all(pieces) if pieces else b""
    else:
        out = b"".join(scanner.feed(piece) for piece in pieces)
    out += scanner.close()
    fault = None if scanner.fault is None else scanner.fault.message
    return out, scanner.pieces, scanner.done, fault, scanner.usage


@given(st.lists(events(), max_size=25), st.lists(st.integers(1, 3000), max_size=8), st.booleans())
def test_however_it_is_split_it_is_as_if_each_event_was_read(
    said: list[str], cuts: list[int], hide: bool
) -> None:
    whole = "".join(said).encode()
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(edges)]
    expected = scan([whole], hide=hide, lessons=0)
    assert scan(pieces, hide=hide, lessons=stream.MOST_LESSONS) == expected
    assert scan(pieces, hide=hide, lessons=stream.MOST_LESSONS, together=True) == expected


@given(st.lists(events(), min_size=1, max_size=25), st.integers(1, 25), st.booleans())
def test_each_event_in_a_piece_of_its_own_and_many_pieces_at_once(
    said: list[str], first: int, hide: bool
) -> None:
    pieces = [event.encode() for event in said]
    expected = scan([b"".join(pieces)], hide=hide, lessons=0)
    assert scan(pieces, hide=hide, lessons=stream.MOST_LESSONS, together=True) == expected
    scanner = StreamScanner("caller", hide_usage=hide, max_event_bytes=4096)
    out = b"".join(scanner.feed_all(some) for some in (pieces[:first], pieces[first:]) if some)
    assert (out + scanner.close(), scanner.pieces, scanner.done) == expected[:3]


@given(st.lists(events(), max_size=25), st.lists(st.integers(1, 3000), max_size=12), st.integers(1, 6))
def test_pieces_of_any_size_and_a_few_of_them_at_once(said: list[str], cuts: list[int], few: int) -> None:
    whole = "".join(said).encode()
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(edges)]
    scanner = StreamScanner("caller", hide_usage=True, max_event_bytes=8192)
    out = b"".join(scanner.feed_all(pieces[at : at + few]) for at in range(0, len(pieces), few))
    expected = scan([whole], hide=True, lessons=0)
    assert (out + scanner.close(), scanner.pieces, scanner.done) == expected[:3]


def test_a_field_that_nobody_reads_may_be_no_utf8() -> None:
    odd = b'data: {"choices":[{"delta":{"reasoning":"a"}}],"x":{"content":"\xff"}}\n\n'
    expected = scan([odd * 3], hide=True, lessons=0)
    assert expected[:2] == (odd * 3 + scan([], hide=True, lessons=0)[0], 3)
    assert scan([odd * 3], hide=True, lessons=stream.MOST_LESSONS) == expected
    assert scan([odd] * 3, hide=True, lessons=stream.MOST_LESSONS, together=True) == expected


def test_whole_events_before_one_that_is_too_long_still_go_out() -> None:
    one = b'data: {"model":"caller","choices":[{"delta":{"content":"a"}}]}\n\n'
    odd = b": b\n\n" + one.replace(b"content", b"reasoning") + b"data: " + b"x" * 5000
    expected = scan([one, odd, b"x"], hide=True, lessons=0)
    assert b"too long" in expected[0] and expected[0].startswith(one + odd[: odd.index(b"xxx") - 6])
    assert scan([one, odd, b"x"], hide=True, lessons=stream.MOST_LESSONS) == expected
    scanner = StreamScanner("caller", hide_usage=True, max_event_bytes=4096)
    assert scanner.feed_all([one, odd]) + scanner.feed(b"x") == expected[0]


def test_split_at_every_place_it_is_the_same() -> None:
    chunk = {"id": "x", "model": "engine", "choices": [{"delta": {"content": "ü\u2028"}}], "usage": None}
    said = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"] * 3 + ["data: [DONE]\n\n"]
    whole = "".join(said).encode()
    expected = scan([whole], hide=True, lessons=0)
    for at in range(1, len(whole)):
        assert scan([whole[:at], whole[at:]], hide=True, lessons=8) == expected
    assert scan([whole[at : at + 1] for at in range(len(whole))], hide=True, lessons=8) == expected


def test_most_events_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    looked = StreamScanner._look
    monkeypatch.setattr(StreamScanner, "_look", lambda self, event: read.append(event) or looked(self, event))
    chunk = b'data: {"model":"engine","choices":[{"delta":{"content":"%b"}}]}\n\n'
    said = b"".join(chunk % text for text in [b"a", b"\\n", b"\xc3\xbc"] * 100) + b"data: [DONE]\n\n"
    scanner = StreamScanner("caller", hide_usage=True, max_event_bytes=4096)
    out = scanner.feed(said)
    assert out == said.replace(b"engine", b"caller") and scanner.done and scanner.pieces == 300
    assert len(read) == 2
