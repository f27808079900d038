"""A stream is followed, renamed and counted the same way wherever it was split (GW-09, GW-12)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.gateway.plane.core.answer import read_answer
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.core.usage import Usage
from tests.examples import examples
from tests.unit.gateway.test_sse import split

DONE = b"data: [DONE]\n\n"


def scanner(*, hide_usage: bool = True, model: str = "mine") -> StreamScanner:
    return StreamScanner(model, hide_usage=hide_usage, max_event_bytes=100_000)


def chunk(content: object = None, end: str = "\n\n", **more: object) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    told = {"id": "x", "model": "theirs", "choices": choices, **more}
    return f"data: {json.dumps(told, ensure_ascii=False)}{end}".encode()


def data_of(out: bytes) -> list:
    text = out.decode().replace("\r\n", "\n").replace("\r", "\n")
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part.strip("\n")]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@pytest.mark.req("GW-09", "GW-05", "GW-12")
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.text(st.sampled_from('a\u2028é🙂\u0085"'), min_size=1, max_size=4), max_size=5),
    st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]),
    st.booleans(),
    st.lists(st.integers(0, 5000), max_size=15),
)
def test_any_split_gives_the_same_answer(texts: list[str], end: str, hide: bool, cuts: list[int]) -> None:
    stream = b"".join(chunk(text, end) for text in texts) + chunk(None, end, usage=USAGE)
    stream += f"data: [DONE]{end}".encode()
    watched = scanner(hide_usage=hide)
    events = data_of(b"".join(watched.feed(part) for part in split(stream, cuts)))
    assert events[-1] == "[DONE]"
    contents = [event["choices"][0]["delta"]["content"] for event in events[:-1] if event["choices"]]
    assert contents == texts
    assert all(event["model"] == "mine" for event in events[:-1])
    assert sum("usage" in event for event in events[:-1]) == (0 if hide else 1)
    assert watched.usage == Usage(7, 2)
    assert watched.pieces == len(texts)
    assert watched.done


@pytest.mark.req("GW-09")
def test_unchanged_bytes_are_the_same_bytes() -> None:
    odd = b'data:   {"model" : "mine",\t"choices":[ ] , "x":1.50}\r\n\r\n'
    assert scanner().feed(odd) == odd
    assert scanner().feed(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert scanner().feed(b"data: not json\n\n") == b"data: not json\n\n"


@pytest.mark.req("GW-05")
def test_renaming_leaves_all_other_fields_as_they_were() -> None:
    out = scanner().feed(b'id: 4\ndata: {"model": "theirs", "x": 1.50, "y": "\\u00e9"}\n\n')
    assert out == b'id: 4\ndata: {"model":"mine","x":1.50,"y":"\\u00e9"}\n\n'


@pytest.mark.req("GW-12")
def test_usage_is_stripped_where_it_rides_on_content() -> None:
    for usage in (USAGE, None):
        out = scanner().feed(chunk("a", usage=usage))
        assert b"usage" not in out
        assert data_of(out)[0]["choices"][0]["delta"] == {"content": "a"}


@pytest.mark.req("GW-12")
def test_usage_beyond_all_sizes_is_none_and_fails_nobody() -> None:
    told = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1e999}}\n\n'
    for hide in (True, False):
        watched = scanner(hide_usage=hide)
        assert b'"a"' in watched.feed(told)
        assert (watched.usage, watched.pieces, watched.fault) == (None, 1, None)
    assert read_answer(told[6:], "mine").usage is None


def test_last_usage_of_many_counts() -> None:
    watched = scanner(hide_usage=False)
    for count in (1, 2, 3):
        watched.feed(chunk("a", usage={"prompt_tokens": 5, "completion_tokens": count}))
    assert watched.usage == Usage(5, 3)


@pytest.mark.req("GW-09")
@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "at /srv/a.py", "code": 500}}\n\n',
        b'data: {"error": "at /srv/a.py"}\n\n',
        b'error: {"message": "at /srv/a.py"}\n\n',
        b'event: error\ndata: {"error": {"message": "at /srv/a.py", "type": "x"}}\n\n',
    ],
)
def test_every_form_of_error_becomes_one_event(event: bytes) -> None:
    watched = scanner()
    out = watched.feed(chunk("a") + event + DONE + chunk("b"))
    told = data_of(out)
    assert len(told) == 2
    assert told[1]["error"]["code"] == "upstream_error"
    assert b"/srv" not in out
    assert watched.fault is not None
    assert not watched.done
    assert watched.feed(DONE) == b""
    assert watched.close() == b""


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("reason", ["abort", {"type": "abort", "message": "x"}])
def test_abort_is_an_error(reason: object) -> None:
    watched = scanner()
    told = {"model": "mine", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    out = watched.feed(f"data: {json.dumps(told)}\n\n".encode() + DONE)
    assert data_of(out)[0]["error"]["code"] == "upstream_aborted"


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("rest", [b"", b'data: {"half', b"data: [DO"])
def test_end_without_done_is_an_error(rest: bytes) -> None:
    watched = scanner()
    watched.feed(chunk("a") + rest)
    assert data_of(watched.close())[0]["error"]["code"] == "upstream_truncated"


def test_done_without_its_blank_line_is_done() -> None:
    watched = scanner()
    watched.feed(chunk("a") + b"data: [DONE]\n")
    assert watched.close() == DONE
    assert watched.done


@pytest.mark.req("GW-12")
@pytest.mark.parametrize(
    "delta",
    [{"content": "a"}, {"reasoning_content": "a"}, {"reasoning": "a"}, {"tool_calls": [{"index": 0}]}],
)
def test_what_counts_as_content(delta: dict) -> None:
    watched = scanner()
    for shape, pieces in (({"role": "assistant", "content": ""}, 0), ({"content": None}, 0), (delta, 1)):
        told = {"model": "mine", "choices": [{"index": 0, "delta": shape}]}
        watched.feed(f"data: {json.dumps(told)}\n\n".encode())
        assert watched.pieces == pieces


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_rubbish_never_raises(data: bytes, cuts: list[int]) -> None:
    watched = scanner()
    for part in split(b'data: {"choices": 5, "usage": [' + data, cuts):
        watched.feed(part)
    watched.close()
