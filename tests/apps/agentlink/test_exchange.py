"""What every agent address has in common: credential, version, size, shape, errors."""

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import get_resolver

from agent.contract import messages as m
from apps.agentlink import services
from apps.core.scopes import scope_of
from apps.fleet.models import Node
from tests import factories
from tests.apps.agentlink.conftest import Caller, heartbeat_of

pytestmark = pytest.mark.django_db

NODE_PATHS = ["heartbeat", "claims", "reports", "logs"]
PATHS = ["join", *NODE_PATHS]


def code(answer):
    assert isinstance(answer, m.AgentError), answer
    return answer.code


@pytest.mark.req("AGENT-01")
@pytest.mark.parametrize("path", NODE_PATHS)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        "Basic {id}:{secret}",
        "Bearer {id}",
        "Bearer {id}:",
        "Bearer {id}:wrong",
        "Bearer {id}:{secret}x",
        "Bearer \x00:\x00",
    ],
)
def test_without_the_credential_nothing_is_answered(node, path, authorization):
    sent = authorization and authorization.format(id=node.public_id, secret="node-secret")
    caller = Caller(None)
    answer = caller.post(path, b"{}", Authorization=sent)
    assert (caller.status, code(answer)) == (401, "node_credential_wrong")
    assert "node-secret" not in answer.detail


@pytest.mark.req("AGENT-01")
def test_the_credential_of_one_node_is_not_that_of_another(node):
    other = factories.make_node(secret="another-secret")
    caller = Caller(other, secret="node-secret")
    answer = caller.post("heartbeat", heartbeat_of(other))
    assert (caller.status, code(answer)) == (403, "not_this_nodes")
    caller.node = Node(public_id="node-aaaaaaaaaaaaaaaa")  # nor that of none
    assert (caller.post("heartbeat", heartbeat_of(other)), caller.status) == (answer, 403)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("version", ["0", "3", "99", "", "one", "1.0", None])
def test_a_contract_that_is_not_spoken_here(agent, path, version):
    answer = agent.post(path, b"{}", **{m.CONTRACT_HEADER: version})
    assert (agent.status, code(answer)) == (426, "contract_unsupported")
    assert "1" in answer.detail


@pytest.mark.parametrize("path", PATHS)
def test_other_methods(path):
    for method in ("get", "put", "delete"):
        response = getattr(Client(), method)(f"/agent/v1/{path}")
        assert (response.status_code, response["Allow"]) == (405, "POST")


@pytest.mark.parametrize("path", PATHS)
def test_other_content_types(agent, path):
    answer = agent.post(path, b"{}", **{"Content-Type": "text/plain"})
    assert (agent.status, code(answer)) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b" ", b"{", b"\xff\xfe", b"nonsense", b'{"type": "\xff"}'])
def test_what_is_not_json(agent, path, body):
    answer = agent.post(path, body)
    assert agent.status == 400
    assert code(answer) in ("malformed_json", "invalid")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b"{}", b'{"type": "other"}'])
def test_what_is_not_the_message(agent, path, body):
    answer = agent.post(path, body)
    assert (agent.status, code(answer)) == (400, "invalid")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("heartbeat", b'{"type": "heartbeat", "incarnation": 7}', "incarnation"),
        ("claims", b'{"type": "claim", "incarnation": "a", "task_id": "t", "attempt": "1"}', "attempt"),
        (
            "reports",
            b'{"type": "reports", "incarnation": "a", "reports": [{"sequence": 0.5}]}',
            "reports[0].sequence",
        ),
        ("logs", b'{"type": "log", "incarnation": "a", "task_id": "t", "attempt": 1, "offset": 0}', "text"),
        ("join", b'{"type": "join"}', "token"),
        ("claims", b'{"type": "claim", "incarnation": "a", "task_id": "t", "attempt": -1}', "attempt"),
        ("claims", b'{"type": "claim", "incarnation": "", "task_id": "t", "attempt": 1}', "incarnation"),
        (
            "claims",
            b'{"type": "claim", "incarnation": "\\u0000", "task_id": "", "attempt": 1}',
            "incarnation",
        ),
    ],
)
def test_a_wrong_field_is_named(agent, path, body, field):
    answer = agent.post(path, body)
    assert (agent.status, code(answer)) == (400, "invalid")
    assert field in answer.detail
    assert "Traceback" not in answer.detail


@pytest.mark.parametrize("path", PATHS)
def test_a_body_above_the_limit(agent, path, settings):
    settings.AGENT_BODY_MAX_BYTES = 1000
    answer = agent.post(path, b'{"type": "' + b"x" * 1000 + b'"}')
    assert (agent.status, code(answer)) == (413, "body_too_large")


def test_a_body_above_the_rest_api_limit_is_fine_here(agent, placed, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    piece = m.LogRequest("run-1", placed.public_id, 1, 0, "x" * 5000)
    assert agent.post("logs", piece) == m.LogReply(5000)


def test_unknown_fields_are_ignored(agent, node):
    """OPS-11: the other side may be a version ahead."""
    claim = b'{"type":"claim","incarnation":"run-1","task_id":"task-x","attempt":1,"new":{"a":[1]}}'
    assert code(agent.post("claims", claim)) == "not_this_nodes"


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("heartbeat", "heartbeat", None),
        ("claims", "claim", m.ClaimRequest("run-1", "task-x", 1)),
        ("reports", "take_reports", m.ReportRequest("run-1", [])),
        ("logs", "take_log", m.LogRequest("run-1", "task-x", 1, 0, "x")),
    ],
)
def test_a_database_that_does_not_answer_is_503(agent, node, monkeypatch, path, name, message):
    def away(*args, **kwargs):
        raise OperationalError("connection to server at 10.1.2.3 failed")

    monkeypatch.setattr(services, name, away)
    answer = agent.post(path, message or heartbeat_of(node))
    assert (agent.status, code(answer)) == (503, "database_away")
    assert "10.1.2.3" not in answer.detail
    assert agent.headers["Retry-After"]


def test_a_database_that_can_not_check_the_credential_is_503_and_not_401(agent, node, monkeypatch):
    def away(*args):
        raise OperationalError("away")

    monkeypatch.setattr("apps.agentlink.credentials.authenticate", away)
    answer = agent.post("heartbeat", heartbeat_of(node))
    assert (agent.status, code(answer)) == (503, "database_away")


def test_an_unexpected_error_shows_nothing_of_itself(agent, node, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("/srv/secret/place")

    monkeypatch.setattr(services, "heartbeat", broken)
    answer = agent.post("heartbeat", heartbeat_of(node))
    assert (agent.status, code(answer)) == (500, "internal")
    assert "/srv" not in answer.detail
    assert "RuntimeError" in caplog.text


def test_every_address_says_whom_it_is_for():
    views = {
        str(pattern.pattern): pattern.callback
        for resolver in get_resolver().url_patterns
        if str(resolver.pattern) == "agent/v1/"
        for pattern in resolver.url_patterns
    }
    assert {path: scope_of(view) for path, view in views.items()} == {
        "join": "public",
        "heartbeat": "node",
        "claims": "node",
        "reports": "node",
        "logs": "node",
        "file-answers": "node",
        "files": "node",
    }
