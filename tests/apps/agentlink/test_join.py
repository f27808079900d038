"""POST /agent/v1/join: one token, one node, also when the answer was lost."""

from datetime import timedelta

import pytest

from agent.contract import messages as m
from apps.core.clock import utc_now
from apps.core.secrets import sha256_hex
from apps.fleet.models import Node
from tests import factories
from tests.apps.agentlink.conftest import Caller, heartbeat_of

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-01")]


@pytest.fixture
def token(db):
    return factories.make_join_token(now=utc_now())[1]


def request(token, secret="my-own-secret", **changes):
    fields = {
        "token": token,
        "secret_sha256": sha256_hex(secret),
        "machine_id": "machine-1",
        "hostname": "gpu-7",
        "agent_version": "0.1.0",
    }
    return m.JoinRequest(**(fields | changes))


def refusal(caller, message):
    answer = caller.post("join", message)
    assert isinstance(answer, m.AgentError), answer
    return caller.status, answer.code, answer.detail


def test_a_machine_joins_and_its_secret_is_its_credential(token):
    reply = Caller(None).post("join", request(token))
    assert isinstance(reply, m.JoinReply)
    node = Node.objects.get(public_id=reply.node_id)
    assert (node.name, node.machine_id) == (reply.name, "machine-1")
    agent = Caller(node, secret="my-own-secret")
    node.runtime, node.cpu_count, node.memory_total_mb = "process", 2, 1024
    assert isinstance(agent.post("heartbeat", heartbeat_of(node)), m.HeartbeatReply)


def test_a_join_after_a_lost_answer_gives_the_same_node(token):
    first = Caller(None).post("join", request(token))
    assert Caller(None).post("join", request(token)) == first
    assert Node.objects.count() == 1


def test_a_token_is_redeemed_once(token):
    Caller(None).post("join", request(token))
    status, code, detail = refusal(Caller(None), request(token, secret="of-another"))
    assert (status, code) == (403, "join_refused")
    assert "another machine" in detail
    assert Node.objects.count() == 1


def test_unknown_tokens_get_one_text(token):
    answers = {
        refusal(Caller(None), request(wrong)) for wrong in ("", "jt-unknown", token + "x", "\0", "\u00fc")
    }
    assert len(answers) == 1
    status, code, _ = answers.pop()
    assert (status, code) == (403, "join_refused")
    assert not Node.objects.exists()


def test_an_expired_token_says_so():
    token = factories.make_join_token(now=utc_now() - timedelta(hours=2))[1]
    status, code, detail = refusal(Caller(None), request(token))
    assert (status, code) == (403, "join_refused")
    assert "expired" in detail


def test_a_hash_that_is_none_is_named(token):
    status, code, detail = refusal(Caller(None), request(token, secret_sha256="plain"))
    assert (status, code) == (400, "invalid")
    assert "secret_sha256" in detail


def test_guessing_is_slowed_per_address(token, settings):
    settings.JOIN_FAILURE_LIMIT = 3
    caller = Caller(None)
    for _ in range(3):
        assert refusal(caller, request("jt-guess"))[0] == 403
    assert refusal(caller, request(token))[:2] == (429, "join_guesses_spent")
    assert caller.headers["Retry-After"] == str(settings.JOIN_FAILURE_WINDOW_S)
    other = Caller(None)
    other.client.defaults["REMOTE_ADDR"] = "10.0.0.9"
    assert isinstance(other.post("join", request(token)), m.JoinReply)


def test_a_cache_that_is_away_stops_nobody(token, monkeypatch):
    def away(*args, **kwargs):
        raise ConnectionError("cache")

    for name in ("get", "add", "incr"):
        monkeypatch.setattr(f"django.core.cache.cache.{name}", away)
    assert refusal(Caller(None), request("jt-guess"))[0] == 403
    assert isinstance(Caller(None).post("join", request(token)), m.JoinReply)


def test_no_token_is_logged(token, caplog):
    Caller(None).post("join", request(token, secret="x"))
    Caller(None).post("join", request(token, secret="y"))
    Caller(None).post("join", request("jt-wrong-token-of-somebody"))
    assert token not in caplog.text
    assert "jt-wrong" not in caplog.text
