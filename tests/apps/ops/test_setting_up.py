"""The two commands of an installation: its first person, and the line for a machine that joins."""

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.core.clock import utc_now
from apps.core.models import AuditEntry
from apps.fleet.models import JoinToken
from apps.tenants.models import User
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-03")]


def said(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_the_first_operator_is_made_once_and_the_password_told_once() -> None:
    password = said("first_operator").split("password ")[1].split()[0]
    assert User.objects.get(username="admin", is_superuser=True).check_password(password)
    with pytest.raises(CommandError, match=r"there already.*password admin"):
        call_command("first_operator")
    assert User.objects.get(username="admin").check_password(password)


def test_a_join_line_is_the_one_of_the_page_and_is_audited(settings: Any) -> None:
    settings.PUBLIC_URL, settings.SERVER_CERTIFICATE_SHA256 = "https://flow.example.com", "ab" * 32
    operator = factories.make_operator()
    line = said("join_line", "--by", operator.username)
    assert "HETEROFLOW_AGENT_SERVER_URL=https://flow.example.com" in line
    assert f"HETEROFLOW_AGENT_SERVER_SHA256={'ab' * 32}" in line
    assert "HETEROFLOW_AGENT_JOIN_TOKEN=jt-" in line
    assert AuditEntry.objects.filter(verb="create_join_token").count() == 1


def test_a_token_alone_lives_as_long_as_was_said() -> None:
    operator = factories.make_operator()
    token = said("join_line", "--by", operator.username, "--token", "--ttl-s", "600")
    assert token.startswith("jt-")
    assert len(token.split()) == 1
    left = JoinToken.objects.get().expires_at - utc_now()
    assert timedelta(minutes=8) < left <= timedelta(minutes=10)


@pytest.mark.parametrize("name", ["nobody", "member"])
def test_only_an_operator_answers_for_a_join(name: str) -> None:
    factories.make_user(username="member")
    with pytest.raises(CommandError, match=f"no operator {name}"):
        call_command("join_line", "--by", name)
    assert not JoinToken.objects.exists()


def test_a_wrong_lifetime_is_one_sentence() -> None:
    operator = factories.make_operator()
    with pytest.raises(CommandError, match=r"--ttl-s 0\.0 must be from 1 to \d+ seconds"):
        call_command("join_line", "--by", operator.username, "--ttl-s", "0")
