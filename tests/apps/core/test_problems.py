"""One problem shape for every refusal, in the caller's language, and strict bodies."""

import io
import json
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from django.test import RequestFactory
from django.utils import translation
from rest_framework import exceptions, serializers
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import errors, problems, texts
from apps.core.requests import RequestIdMiddleware, StrictJSONParser, take_request_id

KEYS = {"code", "detail", "status", "params", "errors", "request_id"}


class Shape(serializers.Serializer):
    name = serializers.CharField(max_length=3)


class Echo(APIView):
    """Raises what it was built with, or answers its body."""

    authentication_classes = ()
    permission_classes = ()
    error: Exception | None = None

    def post(self, request: Any) -> Response:
        if self.error is not None:
            raise self.error
        return Response(request.data)


def ask(error: Exception | None = None, body: bytes = b"{}", **extra: Any) -> Response:
    request = RequestFactory().post("/x", body, content_type="application/json", **extra)
    return Echo.as_view(error=error)(request)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.NotFound(), 404, "not_found"),
        (errors.Forbidden(), 403, "forbidden"),
        (errors.Conflict("name_taken", value="x"), 409, "name_taken"),
        (errors.Unavailable(), 503, "unavailable"),
        (errors.Invalid([errors.FieldError("task.image", "required")]), 400, "invalid"),
        (exceptions.NotAuthenticated(), 401, "not_signed_in"),
        (exceptions.PermissionDenied(), 403, "forbidden"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.Throttled(wait=7), 429, "throttled"),
        (exceptions.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (OperationalError("no route to /secret/host"), 503, "database_away"),
        (IntegrityError("UNIQUE constraint failed"), 500, "internal"),
        (RuntimeError("at /secret/path"), 500, "internal"),
    ],
)
def test_every_refusal_has_the_one_shape_and_tells_no_inside(error, status, code):
    response = ask(error)

    assert response.status_code == response.data["status"] == status
    assert response.data["code"] == code
    assert set(response.data) == KEYS
    assert "secret" not in json.dumps(response.data)
    assert (response.get("Retry-After") is not None) == (status in (429, 503))
    assert (response.get("WWW-Authenticate") is not None) == (status == 401)


def test_a_wrong_field_is_named_with_its_value_and_rule():
    wrong = errors.FieldError("task.gpu_required", "out_of_range", 99, {"min": 0, "max": 16})
    response = ask(errors.Invalid([wrong]))

    (told,) = response.data["errors"]
    assert told["field"] == "task.gpu_required"
    assert (told["code"], told["value"]) == ("out_of_range", 99)
    assert told["detail"] == "task.gpu_required is 99; it must be from 0 to 16."


def test_errors_of_serializers_take_the_same_shape():
    shape = Shape(data={"name": "long"})
    assert not shape.is_valid()
    response = ask(exceptions.ValidationError(shape.errors))

    assert [told["field"] for told in response.data["errors"]] == ["name"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed_json"),
        (b"\xff\xfe", "malformed_json"),
        (b'{"a": NaN}', "malformed_json"),
        (b"[" * 100_000, "malformed_json"),
        (b"[]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
    ],
)
def test_what_is_no_json_object_is_refused(body, code):
    response = ask(body=body)

    assert (response.status_code, response.data["code"]) == (400, code)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"name": "a\u0000b"}', "name"),
        (rb'{"task": {"env": ["x", "\ud800"]}}', "task.env[1]"),
        (rb'{"a\u0000": 1}', "body"),
        (b'{"n": {"m": 1e999}}', "n.m"),
    ],
)
def test_what_no_database_can_hold_is_refused_by_its_path(body, field):
    response = ask(body=body)

    assert response.status_code == 400
    assert [(told["field"], told["code"]) for told in response.data["errors"]] == [(field, "bad_characters")]


def test_emoji_and_chinese_are_fine():
    body = json.dumps({"name": "模型 🚀"})
    assert ask(body=body.encode()).data == {"name": "模型 🚀"}
    assert ask(body=json.dumps({"name": "模型 🚀"}, ensure_ascii=False).encode()).data == {"name": "模型 🚀"}


def test_a_large_body_is_refused_before_it_is_read_whole(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000

    class Endless(io.RawIOBase):
        read_bytes = 0

        def read(self, size: int = -1) -> bytes:
            assert size >= 0, "it would be read whole"
            self.read_bytes += size
            return b"x" * size

    endless = Endless()
    with pytest.raises(errors.Refusal) as caught:
        StrictJSONParser().parse(endless, "application/json", {})
    assert (caught.value.code, caught.value.status) == ("body_too_large", 413)
    assert endless.read_bytes <= 1001
    assert ask(body=b'{"a": "' + b"x" * 2000 + b'"}').status_code == 413


@pytest.mark.parametrize("offered", ["abcd1234", "req-1.2_3-ABC", "x" * 64])
def test_a_harmless_request_id_is_kept(offered):
    assert take_request_id(offered) == offered


@pytest.mark.parametrize(
    "offered", [None, "", "short", "x" * 65, "line\nbreak", "abcd1234\n", "<script>", "a b c d e"]
)
def test_any_other_request_id_is_replaced(offered):
    fresh = take_request_id(offered)
    assert fresh != offered
    assert fresh.startswith("req-")
    assert fresh != take_request_id(offered)


def test_the_answer_carries_the_id_of_its_problem():
    def view(request: Any) -> Any:
        return problems.problem_response(errors.NotFound())

    answer = RequestIdMiddleware(view)(RequestFactory().get("/", headers={"X-Request-Id": "caller-12345"}))

    assert answer["X-Request-Id"] == "caller-12345"
    assert json.loads(answer.content)["request_id"] == "caller-12345"


async def test_the_id_also_follows_async_views():
    async def view(request: Any) -> Any:
        return problems.problem_response(errors.NotFound())

    request = RequestFactory().get("/", headers={"X-Request-Id": "caller-12345"})
    answer = await RequestIdMiddleware(view)(request)

    assert json.loads(answer.content)["request_id"] == answer["X-Request-Id"] == "caller-12345"


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_every_sentence_can_be_said_with_missing_values(language):
    with translation.override(language):
        for code in texts.TEXTS:
            assert texts.say(code)
            assert "%(" not in texts.say(code, {})


@pytest.mark.parametrize("code", ["load_timeout", "wake_failed", "sleep_call_failed"])
def test_a_cause_is_said_in_the_same_language(code):
    """Ours as a sentence; an engine's own words as they came."""
    for cause in ("node_says_nothing", "sleep_routes_closed"):
        with translation.override("zh-hans"):
            inner = texts.say(cause)
            assert inner in texts.say(code, {"after_s": 3, "why": cause}) and cause not in inner
        assert inner != texts.say(cause), "both languages have it"
    assert "error: 42 layers" in texts.say(code, {"after_s": 3, "why": "error: 42 layers"})


@pytest.mark.django_db
def test_unknown_api_paths_answer_in_the_shape(api_client):
    response = api_client().get("/api/v1/no-such-thing")

    assert response.status_code in (401, 404)
    assert set(response.json()) == KEYS
    assert response.json()["request_id"] == response["X-Request-Id"]


def test_a_database_that_is_away_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ask(OperationalError("database is locked"))
    (record,) = [record for record in caplog.records if record.name == "heteroflow.api"]
    assert record.getMessage() == "the database did not answer: database is locked"
    assert record.exc_info is None
