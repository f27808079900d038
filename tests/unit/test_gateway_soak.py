"""What `make soak-gateway` complains of. Its minutes are run in tests/faults/test_gateway_soak.py."""

import json
from typing import Any

import pytest

from apps.usage.record import Ending, UsageEntry
from bench.gateway_soak.callers import Called, Seen
from bench.gateway_soak.engine import PIECES, PROMPT_TOKENS
from bench.gateway_soak.verdict import complaints, fates, grown

pytestmark = pytest.mark.req("GW-09", "GW-12", "OPS-03")
ID = "soak-00000001"


def called(outcome: str, *, leaves: bool = False) -> Called:
    return Called(ID, stream=True, wants_usage=False, leaves=leaves, outcome=outcome, sent=True)


def record(ending: Ending, **changes: Any) -> UsageEntry:
    tokens = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": PIECES}
    fields = {"request_id": f"{ID}.x", "started_at": 0.0, "path": "/", "ending": ending, "http_status": 200}
    return UsageEntry(**{**fields, **tokens, **changes})


@pytest.mark.parametrize(
    ("outcome", "fate", "ending"),
    [
        ("whole", "served", Ending.COMPLETED),
        ("left", "left", Ending.CLIENT_GONE),
        ("left", "hang", Ending.UPSTREAM_ERROR),
        ("event upstream_truncated", "begun", Ending.UPSTREAM_TRUNCATED),
        ("event upstream_truncated", "reset", Ending.UPSTREAM_TRUNCATED),
        ("status 504 upstream_timeout", "hang", Ending.UPSTREAM_ERROR),
        ("status 502 upstream_unreadable", "garbage", Ending.UPSTREAM_ERROR),
        ("wrong text or model", "garbage", Ending.COMPLETED),
    ],
)
def test_what_an_engine_did_is_nobody_elses_fault(outcome: str, fate: str, ending: Ending) -> None:
    call = called(outcome, leaves=outcome == "left")
    assert complaints([call], {f"{ID}.x": fate}, [record(ending)]) == {}


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        ("event upstream_truncated", "served"),
        ("event upstream_truncated", "left"),  # we closed the engine's connection
        ("event upstream_timeout", "reset"),
        ("status 503 no_backend", "hang"),
        ("status 502 upstream_unreachable", "reset"),  # others could have served it
        ("status 500 internal_error", "garbage"),
        ("cut", "begun"),
        ("silent", "hang"),
        ("failed ServerDisconnectedError", "begun"),
        ("after whole", "garbage"),
        ("wrong text or model", "served"),
        ("left", "left"),  # who didn't leave
    ],
)
def test_any_other_failure_is_told(outcome: str, fate: str) -> None:
    said = complaints([called(outcome)], {f"{ID}.x": fate}, [record(Ending.UPSTREAM_ERROR)])
    assert said == {f"{outcome} (engine: {fate})": 1}


def test_a_call_that_never_came_to_an_engine_has_no_excuse() -> None:
    said = complaints([called("event upstream_truncated")], {}, [record(Ending.UPSTREAM_TRUNCATED)])
    assert said == {"event upstream_truncated (engine: no engine's)": 1}


def test_records_are_one_for_each_call_with_the_tokens_that_its_engine_told() -> None:
    call, fate = called("whole"), {f"{ID}.x": "served"}
    good = record(Ending.COMPLETED)
    assert complaints([call], fate, []) == {"0 records of a call that ended as: whole": 1}
    assert complaints([call], fate, [good, good]) == {"2 records of a call that ended as: whole": 1}
    assert complaints([], fate, [good]) == {"records of calls that nobody made": 1}
    for wrong in (
        record(Ending.COMPLETED, completion_tokens=PIECES - 1),
        record(Ending.COMPLETED, estimated=True),
        record(Ending.CLIENT_GONE),
    ):
        ((words, number),) = complaints([call], fate, [wrong]).items()
        assert words.startswith("whole (engine: served) recorded as") and number == 1
    left = called("left", leaves=True)
    assert complaints([left], {f"{ID}.x": "left"}, [good]).total() == 1


def test_who_left_before_a_word_was_said_leaves_no_record() -> None:
    left = called("left", leaves=True)
    left.sent = False
    assert complaints([left], {}, []) == {}
    assert complaints([called("left", leaves=True)], {}, []) == {"0 records of a call that ended as: left": 1}


def test_the_last_try_of_a_repeated_call_counts_and_what_was_done_to_it_first() -> None:
    first = "1 a.x begun\n2 a.x reset\n5 b.x begun\n6 b.x hang\n9 b.x left\n"
    second = "3 a.x begun\n7 a.x served\n8 c.x begun\n"
    assert fates([first, second]) == {"a.x": "served", "b.x": "hang", "c.x": "begun"}


def test_growth_is_told_beyond_its_limit() -> None:
    assert grown(30.0, 38.0, 8.0) == []
    assert grown(30.0, 38.5, 8.0) == ["the gateway's MiB: 30.0 at first, 38.5 at last"]


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (b"data: [DONE]\n", "wrong text or usage"),
        (b'data: {"error": {"code": "upstream_timeout"}}\n', "event upstream_timeout"),
        (b"\n", "cut"),
        (b"data: {\xff\n", "cut"),
    ],
)
def test_a_stream_is_whole_only_with_all_its_words(end: bytes, outcome: str) -> None:
    seen = Seen("chat")
    event = {"model": "chat", "choices": [{"delta": {"content": "w0 "}}]}
    seen.take(b"data: " + json.dumps(event).encode() + b"\n")
    seen.take(end)
    assert seen.outcome(wants_usage=False) == outcome
