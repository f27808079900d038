"""Odd bodies on every address of people and machines: a problem with a code, never a 500."""

import json

import pytest

from apps.tenants.models import Tenant
from tests import factories

pytestmark = [pytest.mark.django_db]

LONG = "n" * 300

CASES = [
    # address, body, field, code
    ("/api/v1/tenants", {"slug": "a\0b"}, "slug", "bad_characters"),
    ("/api/v1/tenants", {"slug": "smile-\U0001f600"}, "slug", "validation"),
    ("/api/v1/tenants", {"slug": LONG}, "slug", "too_long"),
    ("/api/v1/tenants", {"slug": ""}, "slug", "blank"),
    ("/api/v1/tenants", {"slug": None}, "slug", "required"),
    ("/api/v1/tenants", {}, "slug", "required"),
    ("/api/v1/tenants", {"slug": "ok", "name": LONG}, "name", "too_long"),
    ("/api/v1/tenants", {"slug": "ok", "name": ["x"]}, "name", "wrong_type"),
    ("/api/v1/tenants", {"slug": "ok", "nmae": "x"}, "nmae", "unknown_field"),
    ("/api/v1/tenants", {"slug": "ok", "quota": []}, "quota", "wrong_type"),
    ("/api/v1/tenants", {"slug": "ok", "quota": {"gpus": -1}}, "quota.gpus", "out_of_range"),
    ("/api/v1/tenants", {"slug": "ok", "quota": {"gpus": 10**30}}, "quota.gpus", "out_of_range"),
    ("/api/v1/tenants", {"slug": "ok", "quota": {"gpus": "many"}}, "quota.gpus", "wrong_type"),
    ("/api/v1/tenants", {"slug": "ok", "quota": {"gpu": 1}}, "quota.gpu", "unknown_field"),
    ("/api/v1/api-keys", {}, "name", "required"),
    ("/api/v1/api-keys", {"name": "x\0"}, "name", "bad_characters"),
    ("/api/v1/api-keys", {"name": "\ud800"}, "name", "bad_characters"),
    ("/api/v1/api-keys", {"name": LONG}, "name", "too_long"),
    ("/api/v1/api-keys", {"name": "k", "allowed_models": "m"}, "allowed_models", "wrong_type"),
    ("/api/v1/api-keys", {"name": "k", "allowed_models": [LONG]}, "allowed_models[0]", "too_long"),
    ("/api/v1/api-keys", {"name": "k", "expires_at": "soon"}, "expires_at", "wrong_type"),
    ("/api/v1/api-keys", {"name": "k", "expires_at": 10**40}, "expires_at", "wrong_type"),
    ("/api/v1/api-keys", {"name": "k", "tenant": 10**6}, None, "not_found"),
    ("/api/v1/api-keys", {"name": "k", "tenant": "a\nb"}, None, "not_found"),
    ("/api/v1/join-tokens", {"ttl_s": 0}, "ttl_s", "out_of_range"),
    ("/api/v1/join-tokens", {"ttl_s": 10**30}, "ttl_s", "out_of_range"),
    ("/api/v1/join-tokens", {"ttl_s": "x"}, "ttl_s", "wrong_type"),
    ("/api/v1/auth/token", {"username": "a\0", "password": "x"}, "username", "bad_characters"),
    ("/api/v1/auth/token", {"username": "a", "password": "\0"}, "password", "bad_characters"),
    ("/api/v1/auth/token", {"username": LONG, "password": "x"}, "username", "too_long"),
    ("/api/v1/auth/token", {"username": {"a": 1}, "password": ["x"]}, "password", "wrong_type"),
    ("/api/v1/auth/token", {"username": "a", "password": "x" * 5000}, "password", "too_long"),
    ("/api/v1/auth/token/refresh", {"refresh": 7}, None, "not_signed_in"),
]


@pytest.mark.parametrize(("path", "body", "field", "code"), CASES)
def test_a_wrong_field_is_named_with_its_rule(path, body, field, code, api_client, operator, tenant):
    answer = api_client(operator).post(path, json.dumps(body), content_type="application/json")
    problem = answer.json()
    if field is None:
        assert problem["code"] == code
    else:
        assert answer.status_code == 400
        assert (field, code) in [(e["field"], e["code"]) for e in problem["errors"]], problem
        assert all(e["detail"] and "%(" not in e["detail"] for e in problem["errors"])
    assert problem["request_id"] and problem["detail"]
    assert Tenant.objects.count() == 1


NODE_CASES = [
    ({"labels": {"a": 1, "b": {}}}, "labels.b", "wrong_type"),
    ({"labels": ["a"]}, "labels", "wrong_type"),
    ({"labels": {"": "x"}}, "labels", "validation"),
    ({"labels": {f"l{n}": "x" for n in range(65)}}, "labels", "validation"),
    ({"pool": "p\0"}, "pool", "bad_characters"),
    ({"name": ""}, "name", "blank"),
    ({"cordoned": "perhaps"}, "cordoned", "wrong_type"),
    ({"cordoned": None}, "cordoned", "required"),
    ({"hostname": "x"}, "hostname", "unknown_field"),
    ({"allowed_tenants": ["no-such"]}, "allowed_tenants", "no_such_name"),
    ({"allowed_groups": ["no-such"]}, "allowed_groups", "no_such_name"),
    ({"allowed_tenants": "x"}, "allowed_tenants", "wrong_type"),
]


@pytest.mark.parametrize(("body", "field", "code"), NODE_CASES)
def test_a_node_takes_only_what_fits(body, field, code, api_client, operator):
    node = factories.make_node()
    answer = api_client(operator).patch(
        f"/api/v1/nodes/{node.public_id}",
        json.dumps({"name": "kept-out", **body}),
        content_type="application/json",
    )
    assert answer.status_code == 400
    assert (field, code) in [(e["field"], e["code"]) for e in answer.json()["errors"]], answer.json()
    node.refresh_from_db()
    assert node.name != "kept-out"


RAW = [
    (b"{", "application/json", 400, "malformed_json"),
    (b"\xff\xfe", "application/json", 400, "malformed_json"),
    (b'{"name": NaN}', "application/json", 400, "malformed_json"),
    (b"[]", "application/json", 400, "not_an_object"),
    (b'"x"', "application/json", 400, "not_an_object"),
    (b"[" * 100_000, "application/json", 400, "malformed_json"),
    (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    (b'{"name": "' + b"x" * 3_000_000 + b'"}', "application/json", 413, "body_too_large"),
]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/api-keys",
        "/api/v1/tenants",
        "/api/v1/auth/token",
        "/api/v1/auth/session",
        "/api/v1/join-tokens",
    ],
)
@pytest.mark.parametrize(("raw", "kind", "status", "code"), RAW, ids=range(len(RAW)))
def test_a_body_that_is_no_object_is_refused_as_a_whole(path, raw, kind, status, code, api_client, operator):
    answer = api_client(operator).generic("POST", path, raw, content_type=kind)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_names_in_any_script_are_welcome(api_client, operator):
    name = "实验室 \U0001f680"
    answer = api_client(operator).post("/api/v1/tenants", {"slug": "lab", "name": name})
    assert answer.status_code == 201 and answer.json()["name"] == name


@pytest.mark.parametrize(
    "odd", ["%00", "key-a%00aaaaaaaaaaaaa", "x" * 3000, "..%2f..", "%F0%9F%98%80", "key-%0a"]
)
@pytest.mark.parametrize("where", ["api-keys", "nodes", "tenants"])
def test_an_id_that_can_be_none_is_a_plain_404(where, odd, api_client, operator):
    answer = api_client(operator).get(f"/api/v1/{where}/{odd}")
    assert answer.status_code == 404
