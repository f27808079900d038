"""Events come out whole and byte for byte, wherever the stream was split (GW-09)."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.gateway.plane.core.sse import EventCutter, EventTooLong, event_data, replace_data
from tests.examples import examples

LINE_ENDS = ["\n", "\r\n", "\r"]
TEXT = st.text(st.sampled_from('aé\u2028\u2029\u0085\x0b\x0c🙂 :{}"'), max_size=8)
LINES = st.one_of(
    TEXT.map(lambda text: "data: " + text),
    TEXT.map(lambda text: "data:" + text),
    TEXT.map(lambda text: ":" + text),
    st.sampled_from(["event: x", "id: 7", "data", "retry: 5"]),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, int]:
    """Bytes of a stream with mixed line ends, and how many events they hold."""
    out = ""
    count = draw(st.integers(0, 6))
    for _ in range(count):
        for line in draw(st.lists(LINES, min_size=1, max_size=3)):
            out += line + draw(st.sampled_from(LINE_ENDS))
            # CR then LF of another line end would be read as one, by the format's own rule.
        out += "\n" if out.endswith("\n") else draw(st.sampled_from(["\r", "\r\n"]))
    return out.encode(), count


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@pytest.mark.req("GW-09")
@settings(max_examples=examples(400), deadline=None)
@given(streams(), st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from(["", "data: half", "x"]))
def test_any_split_gives_the_same_events(stream: tuple[bytes, int], cuts: list[int], tail: str) -> None:
    data, count = stream
    cutter = EventCutter(1 << 20)
    events = [event for chunk in split(data + tail.encode(), cuts) for event in cutter.feed(chunk)]
    assert b"".join(events) + cutter.rest() == data + tail.encode()
    assert cutter.rest() == tail.encode()
    whole = [event for event in events if event != b"\n"]
    assert len(whole) == count
    once = [event for event in EventCutter(1 << 20).feed(data) if event != b"\n"]
    assert [event_data(event) for event in whole] == [event_data(event) for event in once]


@pytest.mark.req("GW-09")
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_no_byte_is_lost_or_made_up(data: bytes, cuts: list[int]) -> None:
    cutter = EventCutter(1 << 20)
    events = [event for chunk in split(data, cuts) for event in cutter.feed(chunk)]
    assert b"".join(events) + cutter.rest() == data
    for event in events:
        replace_data(event, b"{}")
        event_data(event)


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("end", LINE_ENDS)
def test_event_is_given_with_its_last_byte(end: str) -> None:
    cutter = EventCutter(1000)
    data = f"data: x{end}{end}".encode()
    got = [cutter.feed(data[place : place + 1]) for place in range(len(data))]
    if end == "\r\n":  # the second CR may be the whole line end; its LF follows as the rest of it
        assert got[-2:] == [[b"data: x\r\n\r"], [b"\n"]]
    else:
        assert got[-1] == [data]


def test_data_of_odd_events() -> None:
    assert event_data(b"data: a\ndata: b\n\n") == b"a\nb"
    assert event_data(b"data:a\r\n\r\n") == b"a"
    assert event_data(b"data:  a\n\n") == b" a"
    assert event_data(b": ping\n\n") is None
    assert event_data(b"data\n\n") == b""
    assert event_data(b"\xef\xbb\xbfdata: a\n\n") == b"a"
    assert event_data("data: a\u2028b\n\n".encode()) == "a\u2028b".encode()


def test_replaced_data_leaves_other_lines() -> None:
    event = b"id: 1\r\nevent: x\rdata: a\ndata: b\n: c\n\n"
    assert replace_data(event, b"{}") == b"id: 1\r\nevent: x\rdata: {}\n: c\n\n"


def test_endless_event_is_refused() -> None:
    cutter = EventCutter(10)
    with pytest.raises(EventTooLong):
        for _ in range(20):
            cutter.feed(b"x")
