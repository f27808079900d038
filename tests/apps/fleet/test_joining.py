"""A join token makes one machine one node, however often the machine has to ask."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from agent.contract.messages import JoinRequest
from apps.core import secrets
from apps.core.errors import Conflict, Forbidden, Invalid, Refusal
from apps.fleet import services
from apps.fleet.models import JoinToken, Node
from apps.tenants.scope import SYSTEM, viewer_of
from tests import factories

pytestmark = [pytest.mark.req("AGENT-01")]

SECRET_HASH = secrets.sha256_hex("s1")


def join(token, **changes):
    fields = {
        "token": token,
        "secret_sha256": SECRET_HASH,
        "machine_id": "machine-1",
        "hostname": "gpu-1",
        "agent_version": "0.1.0",
    }
    return services.redeem_join_token(
        request=JoinRequest(**{**fields, **changes}), now=changes.pop("now", factories.NOW)
    )


@pytest.fixture
def token(operator, now):
    _, plain = services.create_join_token(actor=viewer_of(operator), ttl_s=60, now=now)
    return plain


@pytest.mark.django_db
class TestTokens:
    def test_a_token_is_kept_as_a_hash(self, token, now):
        row = JoinToken.objects.get()
        assert token.startswith("jt-") and row.sha256 == secrets.sha256_hex(token)
        assert row.expires_at == now + timedelta(seconds=60)
        assert token not in str(JoinToken.objects.values())

    def test_only_operators_make_them(self, member, now):
        for nobody in (viewer_of(member), SYSTEM):
            with pytest.raises(Forbidden):
                services.create_join_token(actor=nobody, now=now)

    def test_a_repeat_of_the_same_join_is_the_same_node(self, token, now):
        first = join(token)
        again = services.redeem_join_token(
            request=JoinRequest(token, SECRET_HASH, "machine-1", "gpu-1", "0.1.0"),
            now=now + timedelta(days=9),  # also when the lost answer is asked for late
        )
        assert first.pk == again.pk and Node.objects.count() == 1
        assert first.name == "gpu-1" and first.liveness.last_seen_at is None

    @pytest.mark.parametrize(
        "changes", [{"secret_sha256": secrets.sha256_hex("s2")}, {"machine_id": "machine-2"}]
    )
    def test_another_machine_or_secret_gets_nothing(self, changes, token, caplog):
        join(token)
        with pytest.raises(Conflict) as refused:
            join(token, **changes)
        assert refused.value.code == "join_token_used" and Node.objects.count() == 1
        assert token not in caplog.text and "was offered again" in caplog.text

    def test_unknown_and_expired_tokens_join_nobody(self, token, now):
        with pytest.raises(Refusal) as refused:
            join("jt-unknown")
        assert (refused.value.code, refused.value.status) == ("join_token_unknown", 401)
        with pytest.raises(Refusal) as refused:
            services.redeem_join_token(
                request=JoinRequest(token, SECRET_HASH, "m", "h", "v"), now=now + timedelta(seconds=60)
            )
        assert (refused.value.code, refused.value.status) == ("join_token_expired", 401)
        assert not Node.objects.exists()

    @pytest.mark.parametrize(
        ("field", "value", "code"),
        [
            ("secret_sha256", "", "wrong_type"),
            ("secret_sha256", "S" * 64, "wrong_type"),
            ("secret_sha256", "a" * 64 + "\n", "wrong_type"),
            ("machine_id", " ", "blank"),
            ("machine_id", "m" * 101, "too_long"),
            ("hostname", "h" * 300, "too_long"),
            ("hostname", "a\0b", "bad_characters"),
            ("agent_version", "1\n", "bad_characters"),
            ("contract_version", 0, "out_of_range"),
            ("contract_version", 10**30, "out_of_range"),
        ],
    )
    def test_an_unusable_field_is_named_and_spends_no_token(self, field, value, code, token):
        with pytest.raises(Invalid) as refused:
            join(token, **{field: value})
        assert [(e.field, e.code) for e in refused.value.errors] == [(field, code)]
        assert JoinToken.objects.get().redeemed_at is None

    def test_machines_of_one_name_get_numbers(self, operator, now):
        names = []
        for number in range(3):
            _, plain = services.create_join_token(actor=viewer_of(operator), now=now)
            names.append(join(plain, machine_id=f"m{number}").name)
        assert names == ["gpu-1", "gpu-1-2", "gpu-1-3"]

    def test_only_the_nodes_own_secret_proves_it(self, token):
        node = join(token)
        assert services.authenticate(node.public_id, "s1") == node
        other = factories.make_node(secret="s2")
        for node_id, secret in (
            (node.public_id, "s2"),
            (node.public_id, ""),
            (other.public_id, "s1"),
            ("node-aaaaaaaaaaaaaaaa", "s1"),
            ("\0", "s1"),
            ("", ""),
        ):
            assert services.authenticate(node_id, secret) is None

    def test_the_address_answers_token_and_line_once(self, api_client, operator, member, settings):
        settings.PUBLIC_URL = "https://flow.example:8443"
        answer = api_client(operator).post("/api/v1/join-tokens", {"ttl_s": 120})
        assert answer.status_code == 201 and answer["Cache-Control"] == "no-store"
        token, command = answer.json()["token"], answer.json()["command"]
        assert token in command and settings.PUBLIC_URL in command and "SHA256" not in command
        # By environment: arguments of a process are seen by everybody on the machine.
        assert command.index(token) < command.index("python -m agent")
        assert join(token).name == "gpu-1"
        assert api_client(member).post("/api/v1/join-tokens", {}).status_code == 403
        assert api_client().post("/api/v1/join-tokens", {}).status_code == 401

    def test_the_line_pins_a_certificate_that_no_authority_vouches_for(self, settings):
        settings.SERVER_CERTIFICATE_SHA256 = "ab" * 32
        assert f" HETEROFLOW_AGENT_SERVER_SHA256={'ab' * 32} " in services.join_command("jt-x")


def join_at_once(tokens):
    """A machine for each; what became of them."""
    start, outcomes = threading.Barrier(len(tokens)), []

    def run(number, plain):
        try:
            start.wait(timeout=30)
            join(plain, machine_id=f"machine-{number}")
            outcomes.append("joined")
        except Refusal as refusal:
            outcomes.append(refusal.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=one) for one in enumerate(tokens)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return sorted(outcomes)


@pytest.mark.django_db(transaction=True)
def test_machines_of_one_name_that_join_at_once_get_numbers():
    outcomes = join_at_once([factories.make_join_token()[1] for _ in range(5)])
    assert outcomes == ["joined"] * 5
    names = sorted(Node.objects.values_list("name", flat=True))
    assert names == ["gpu-1", "gpu-1-2", "gpu-1-3", "gpu-1-4", "gpu-1-5"]


@pytest.mark.django_db(transaction=True)
def test_ten_machines_at_once_with_one_token_make_one_node():
    _, plain = factories.make_join_token()
    assert join_at_once([plain] * 10) == ["join_token_used"] * 9 + ["joined"]
    assert Node.objects.count() == 1
