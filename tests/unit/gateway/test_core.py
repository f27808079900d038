"""Bodies, admission, usage policy and error texts as pure functions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core import answer, naming, told
from apps.gateway.plane.core.admission import find_routes, hash_bearer, list_models, require_live
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.core.request import Call, build_upstream_body, estimate_prompt_tokens, parse_call
from apps.gateway.plane.core.usage import CallFacts, Usage, parse_usage, settle
from apps.usage.record import Ending
from tests.fakes.gateway import SECRET, make_key, make_route, make_table, sha

CHAT = "/v1/chat/completions"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)

# ---- bodies ----


@pytest.mark.req("GW-05")
@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5), st.text(min_size=1))
def test_only_the_model_changes(fields: dict, served: str) -> None:
    fields = {**fields, "model": "mine", "stream": False}
    built = build_upstream_body(parse_call(CHAT, msgspec.json.encode(fields)), served)
    assert msgspec.json.decode(built) == {**fields, "model": served}


@pytest.mark.req("GW-05")
def test_numbers_and_escapes_stay_as_they_were_written() -> None:
    call = parse_call(CHAT, b'{ "temperature": 0.70, "n" : 1e0, "model":"a", "s":"\\u00e9\\/" }')
    assert build_upstream_body(call, "b") == b'{"temperature":0.70,"n":1e0,"model":"b","s":"\\u00e9\\/"}'


@pytest.mark.req("GW-12")
def test_other_stream_options_are_kept() -> None:
    call = parse_call(CHAT, b'{"model":"a","stream":true,"stream_options":{"x":1,"include_usage":false}}')
    built = msgspec.json.decode(build_upstream_body(call, "a"))
    assert built["stream_options"] == {"x": 1, "include_usage": True}
    assert "stream_options" not in msgspec.json.decode(build_upstream_body(call, "a", ask_usage=False))


@pytest.mark.req("GW-12")
def test_usage_is_not_asked_for_without_a_stream() -> None:
    for body in (b'{"model":"a"}', b'{"model":"a","stream":null}', b'{"model":"a","stream":false}'):
        assert b"stream_options" not in build_upstream_body(parse_call(CHAT, body), "a")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"content": "x" * 8}, {"content": [{"type": "text", "text": "abcd"}]}]}, 3),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:" + "x" * 4000}}]}]}, 0),
        ({"prompt": "abcde"}, 2),
        ({"prompt": ["abcd", "abcd"]}, 2),
        ({"prompt": [1, 2, 3]}, 3),
        ({"input": [[1, 2], [3]]}, 3),
        ({"prompt": 7}, 0),
        ({}, 0),
    ],
)
def test_prompt_estimate(body: dict, tokens: int) -> None:
    call = parse_call(CHAT, msgspec.json.encode({"model": "a", **body}))
    assert estimate_prompt_tokens(call) == tokens


@pytest.mark.req("GW-12")
@pytest.mark.parametrize("prompt", [b"1e999", b"[" * 999 + b"]" * 999, b'["\\ud800"]'])
def test_a_prompt_that_can_not_be_taken_apart_is_counted_or_refused(prompt: bytes) -> None:
    try:
        call = parse_call(CHAT, b'{"model":"a","prompt":%b}' % prompt)
    except CallError as fault:
        assert fault.status == 400
    else:
        assert estimate_prompt_tokens(call) >= 0


# ---- admission ----


@pytest.mark.req("GW-02", "TEN-06")
def test_bearer_is_read_whatever_its_case() -> None:
    for header in (f"Bearer {SECRET}", f"bearer  {SECRET} ", f"BEARER {SECRET}"):
        assert hash_bearer(header.encode()) == sha(SECRET)


@pytest.mark.req("GW-02")
@given(st.binary(max_size=600))
def test_any_header_is_a_hash_or_401(header: bytes) -> None:
    try:
        assert len(hash_bearer(header)) == 64
    except CallError as error:
        assert error.status == 401


@pytest.mark.req("GW-02")
def test_expiry_at_its_very_moment() -> None:
    key = make_key(expires_at=100.0)
    assert require_live(key, now=99.999) is key
    for now in (100.0, 101.0):
        with pytest.raises(CallError):
            require_live(key, now=now)


@pytest.mark.req("GW-02")
def test_no_models_allowed_is_not_all_models() -> None:
    table = make_table(make_route())
    assert list_models(table, make_key(allowed_models=frozenset())) == []
    assert list_models(table, make_key(allowed_models=None)) == ["caller-name"]
    with pytest.raises(CallError):
        find_routes(table, make_key(tenant_id="ten-other"), "caller-name")


# ---- usage ----


@pytest.mark.req("GW-12")
@pytest.mark.parametrize(
    ("told_usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, Usage(3, 4)),
        ({"prompt_tokens": 3, "total_tokens": 3}, Usage(3, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage(0, 0)),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(3, 4, 3),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None}, Usage(3, 4)),
        ({}, None),
        (None, None),
        ([], None),
        ({"prompt_tokens": None, "completion_tokens": 4}, None),
        ({"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 9}, None),
        ({"prompt_tokens": -1, "completion_tokens": 4}, None),
        ({"prompt_tokens": True, "completion_tokens": 4}, None),
        ({"prompt_tokens": 10**12, "completion_tokens": 4}, None),
        ({"prompt_tokens": 3.5, "completion_tokens": 4}, None),
    ],
)
def test_reported_counts(told_usage: object, expected: Usage | None) -> None:
    assert parse_usage(told_usage) == expected


CALL = Call(CHAT, "m", False, False, {}, prompt_tokens=10)


def settled(ending: Ending, usage: Usage | None = None, delivered: int = 0):
    facts = CallFacts("req-1", 1.0, CHAT, usage=usage, delivered=delivered)
    entry = settle(facts, ending, http_status=200, duration_ms=5, call=CALL)
    return entry.prompt_tokens, entry.completion_tokens, entry.estimated


@pytest.mark.req("GW-12")
@pytest.mark.parametrize("ending", [Ending.CLIENT_GONE, Ending.UPSTREAM_ERROR, Ending.UPSTREAM_TRUNCATED])
def test_policy_of_broken_calls(ending: Ending) -> None:
    assert settled(ending) == (0, 0, False)
    assert settled(ending, delivered=4) == (10, 4, True)
    assert settled(ending, Usage(7, 9), delivered=4) == (7, 9, False)
    assert settled(ending, Usage(0, 0), delivered=4) == (0, 0, False)


@pytest.mark.req("GW-12")
def test_policy_of_whole_calls_and_refusals() -> None:
    assert settled(Ending.COMPLETED, Usage(7, 9), delivered=4) == (7, 9, False)
    assert settled(Ending.COMPLETED, Usage(0, 0), delivered=4) == (0, 0, False)
    assert settled(Ending.COMPLETED, delivered=4) == (10, 4, True)
    for ending in (Ending.REFUSED, Ending.NO_BACKEND):
        assert settled(ending, Usage(7, 9), delivered=4) == (0, 0, False)


def test_record_can_be_stored_whatever_the_model_is_called() -> None:
    facts = CallFacts("req-1", 1.0, CHAT, model="a\x00b" + "x" * 300)
    entry = settle(facts, Ending.REFUSED, http_status=404, duration_ms=1)
    assert entry.model == ("ab" + "x" * 300)[:200]


# ---- engines' errors and answers ----


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}', "too long",
         "context_length_exceeded"),
        (b'{"error":"plain"}', "plain", None),
        (b'{"detail":"Not Found"}', "Not Found", None),
        (b'{"object":"error","message":"sglang","code":400}', "sglang", None),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', '[{"loc":["body"],"msg":"x"}]', None),
        (b"<html>", None, None),
        (b"", None, None),
        (b'{"error":{"message":7}}', None, None),
    ],
)  # fmt: skip
def test_forms_of_engine_errors(body: bytes, message: str | None, code: str | None) -> None:
    found = told.read_error_object(body)
    assert (found.message, found.code) == (message, code)


@pytest.mark.req("GW-05")
def test_whole_answer_is_touched_only_where_the_name_differs() -> None:
    same = b'{ "model": "mine", "choices": [ ], "usage": {"prompt_tokens":1,"completion_tokens":2}}'
    assert answer.read_answer(same, "mine").body == same
    assert answer.read_answer(b'{"model":"x","n":1.0}', "mine").body == b'{"model":"mine","n":1.0}'
    assert answer.read_answer(b'{"model":null}', "mine").body == b'{"model":null}'
    assert answer.read_answer(b'{"choices":[{"message":{"content":"abcde"}}]}', "m").text_tokens == 2
    for odd in (b'{"choices":5,"model":"\xff"}', b'{"model":"\xff","usage":{}}'):
        with pytest.raises(CallError, match="not a JSON object"):
            answer.read_answer(odd, "m")


@pytest.mark.req("GW-05")
def test_name_that_an_engine_makes_very_long_is_replaced_and_not_kept() -> None:
    counts = b'"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    for name in ("n" * naming.MOST_CHARS, "n" * (naming.MOST_CHARS + 1)):
        body = b'{"model":"%b",%b' % (name.encode(), counts)
        assert answer.read_answer(body, "mine").body == b'{"model":"mine",%b' % counts
        assert (naming.swap_name(body, name, "mine") is None) == (len(name) > naming.MOST_CHARS)


@pytest.mark.req("GW-05")
def test_model_id_passes_over_adapters() -> None:
    listed = b'{"data":[{"id":"lora","parent":"base"},{"id":"base","parent":null}]}'
    assert answer.read_model_id(listed) == "base"
    for length, known in ((naming.MOST_CHARS, True), (naming.MOST_CHARS + 1, False)):
        named = b'{"data":[{"id":"%b"}]}' % (b"n" * length)
        assert (answer.read_model_id(named) is not None) is known
    for body in (b"{}", b'{"data":[]}', b'{"data":[{"id":""}]}', b"no", b'{"data":{}}'):
        assert answer.read_model_id(body) is None


@pytest.mark.req("GW-01")
@pytest.mark.parametrize(
    ("told_by_engine", "passed"),
    [
        (b"17", "17"),
        (b"0", "0"),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT"),
        (None, None),
        (b"", None),
        (b"-1", None),
        (b"1.5", None),
        (b"1, 2", None),
        (b"86401", None),
        (b"9" * 60_000, None),
        (b"Wed, 51 Oct 2026 07:28:00 GMT", None),
        (b"Wed, 21 Oct 2026 07:28:00 GMT" + b"x" * 60_000, None),
        ("٣".encode(), None),
        (b"17\n", None),
    ],
)
def test_only_a_time_goes_on_as_retry_after(told_by_engine: bytes | None, passed: str | None) -> None:
    words = {"served_name": "a", "model": "b", "retry_after_s": 2}
    refused = answer.read_upstream_error(429, b"{}", retry_after=told_by_engine, **words)
    assert refused.retry_after == passed
    away = answer.read_upstream_error(503, b"{}", retry_after=told_by_engine, **words)
    assert away.retry_after == (passed or "2")


@pytest.mark.req("GW-01")
def test_what_an_engine_calls_its_error_is_bounded() -> None:
    long = {"message": "m" * 60_000, "param": "p" * 60_000, "code": "c" * 60_000}
    body = msgspec.json.encode({"error": long})
    refused = answer.read_upstream_error(
        400, body, retry_after=None, served_name="a", model="b", retry_after_s=2
    )
    assert len(refused.body()) < 3000
    assert refused.param == "p" * told.MAX_NAME_CHARS
