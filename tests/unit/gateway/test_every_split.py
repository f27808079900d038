"""One stream with all that is odd in it, cut at every place, and events as long as they may be (GW-09)."""

import json
from itertools import pairwise

import pytest

from apps.gateway.plane.core.alike import Alike
from apps.gateway.plane.core.config import MIB, GatewayConfig
from apps.gateway.plane.core.sse import EventCutter
from apps.gateway.plane.core.stream import MOST_LOOKS, StreamScanner
from apps.gateway.plane.core.usage import Usage

pytestmark = pytest.mark.req("GW-09", "GW-12")
TEXTS = ["a", "é", "\u2028", "\u2029\u0085\x0b", "🙂", 'b"\\', "\n\ndata: [DONE]\n\n", "日本"]
ENDS = ["\n\n", "\r\n\r\n", "\r\r", "\n\r", "\r\n\n", "\n\r\n", "\r\r\n"]


def event(text: str) -> str:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    told = {"model": "theirs", "choices": choices}
    return "data: " + json.dumps(told, ensure_ascii=False, separators=(",", ":"))


STREAM = "".join(
    [
        "\ufeff: begun\r\n\r\n",
        *(event(text) + ENDS[place % len(ENDS)] for place, text in enumerate(TEXTS)),
        ": still there\n\n",
        'id: 4\r\nevent: x\rdata: {"model": "theirs",\ndata:  "choices": []}\n\n',
        'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 8}}\r\n\r\n',
        "data: [DONE]\r\r",
    ]
).encode()


def scan(pieces: list[bytes]) -> tuple[object, ...]:
    scanner = StreamScanner("mine", hide_usage=True, max_event_bytes=8 * MIB)
    out = b"".join(scanner.feed(piece) for piece in pieces)
    return out, scanner.pieces, scanner.usage, scanner.done, scanner.fault


def test_cut_at_every_place_it_is_the_same_stream() -> None:
    whole = scan([STREAM])
    out = whole[0]
    assert whole[1:] == (len(TEXTS), Usage(7, 8), True, None)
    assert isinstance(out, bytes) and b"theirs" not in out and b"usage" not in out
    for text in TEXTS:
        assert json.dumps(text, ensure_ascii=False).encode() in out
    for at in range(1, len(STREAM)):
        assert scan([STREAM[:at], STREAM[at:]]) == whole, f"cut at {at}: {STREAM[at - 9 : at + 9]!r}"
    assert scan([STREAM[at : at + 1] for at in range(len(STREAM))]) == whole


@pytest.mark.parametrize("size", [1000, 65_536, 8 * MIB])
def test_an_event_of_eight_megabytes_passes_whole(size: int) -> None:
    text = "é\u2028" * ((8 * MIB - 2000) // 5)
    stream = b"".join(
        (event(one) + end).encode() for one, end in (("a", "\n\n"), (text, "\r\n\r\n"), ("b", "\n\n"))
    )
    edges = [*range(0, len(stream), size), len(stream)]
    out, pieces, _, done, fault = scan([stream[begin:end] for begin, end in pairwise(edges)])
    assert (pieces, done, fault) == (3, False, None)
    assert isinstance(out, bytes)
    parts = [json.loads(part[6:]) for part in out.replace(b"\r\n", b"\n").split(b"\n\n") if part]
    assert [part["choices"][0]["delta"]["content"] for part in parts] == ["a", text, "b"]
    assert {part["model"] for part in parts} == {"mine"}


ALIKE = event("a") + "\n\n"


@pytest.mark.parametrize(
    ("stream", "size"),
    [
        (ALIKE + event("x" * MIB) + "\n\n" + ALIKE, 1000),
        ((ALIKE + ":\n\n") * 3000, 320_000),
        ((ALIKE + 'data: {"choices":[],"usage":null}\n\n') * 2000, 320_000),
        ((ALIKE * 7 + "data: x\n\n") * 400, 1000),
    ],
    ids=["long", "comments", "usage", "small pieces"],
)
def test_nothing_is_looked_at_again_and_again(
    stream: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine chooses its events and the pieces they come in; they cost no more than in proportion."""
    looked_at = 0
    cut, take_rest = Alike.cut, EventCutter.take_rest

    def counted_cut(alike: Alike, data: bytes) -> tuple[bytes, int, bytes] | None:
        nonlocal looked_at
        looked_at += len(data)
        return cut(alike, data)

    def counted_rest(cutter: EventCutter) -> bytes | None:
        nonlocal looked_at
        rest = take_rest(cutter)
        looked_at += len(rest or b"")
        return rest

    monkeypatch.setattr(Alike, "cut", counted_cut)
    monkeypatch.setattr(EventCutter, "take_rest", counted_rest)
    said = stream.encode()
    _, pieces, _, _, fault = scan([said[at : at + size] for at in range(0, len(said), size)])
    assert (pieces, fault) == (stream.count('"content"'), None)
    assert 0 < looked_at < 2 * (MOST_LOOKS + 1) * len(said)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_flood_of_blank_lines_is_one_event(end: str) -> None:
    flood = (event("a") + end * 100_000).encode()
    (first,) = EventCutter(MIB).feed(flood)
    assert first == flood
    out, pieces, _, done, fault = scan([flood, end.encode() * 1000, b"data: [DONE]" + end.encode() * 5])
    assert (pieces, done, fault) == (1, True, None)
    assert isinstance(out, bytes) and out.endswith(b"data: [DONE]" + end.encode() * 5)


def test_a_longer_one_ends_the_stream_in_words() -> None:
    limit = GatewayConfig().max_event_bytes
    scanner = StreamScanner("mine", hide_usage=True, max_event_bytes=limit)
    said = scanner.feed((event("a") + "\n\n").encode())
    fed = 0
    while scanner.fault is None and fed < 2 * limit:
        said += scanner.feed(b"x" * 65_536)
        fed += 65_536
    assert fed <= limit + 65_536
    assert b"an event that is too long" in said.rsplit(b"data: ", 1)[1]
