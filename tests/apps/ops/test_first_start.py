"""What the first start makes, and what a second one leaves as it is (OPS-01)."""

import io
import json
import stat
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from agent.config import load_settings
from apps.fleet.models import JoinToken
from apps.ops import engine_ports, first_start, greeting, prelaunch
from apps.ops.engine_ports import hold_range
from apps.ops.layout import Layout
from apps.ops.preflight import NotReady
from apps.tenants.models import User
from apps.tenants.scope import viewer_of
from tests import factories


def ensure(layout: Layout, now: datetime) -> None:
    first_start.ensure_agent(
        layout,
        operator=viewer_of(factories.make_operator()),
        server_url="http://127.0.0.1:3333",
        ports=(21000, 21399),
        now=now,
    )


@pytest.mark.django_db
@pytest.mark.req("OPS-01")
def test_operator_is_made_once_and_the_password_told_once() -> None:
    user, password = first_start.ensure_operator()
    assert password is not None
    assert user.is_operator
    assert user.check_password(password)
    again, nothing = first_start.ensure_operator()
    assert (again.pk, nothing) == (user.pk, None)
    assert User.objects.get(pk=user.pk).check_password(password)


@pytest.mark.django_db
def test_agent_reads_what_is_written_and_no_secret_lies_open(tmp_path: Path, now: datetime) -> None:
    layout = Layout(tmp_path)
    ensure(layout, now)
    settings = load_settings(layout.agent_config, {})
    assert settings.port_range == (21000, 21399)
    assert settings.allowed_volume_prefixes == [str(layout.models)]
    assert Path(settings.join_token_file).read_text().startswith("jt-")
    for path in (layout.agent_config, layout.join_token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "jt-" not in layout.agent_config.read_text()


@pytest.mark.django_db
def test_no_token_for_an_agent_that_has_joined(tmp_path: Path, now: datetime) -> None:
    layout = Layout(tmp_path)
    ensure(layout, now)
    (layout.agent_state / "identity.json").write_text(json.dumps({"node_id": ""}))
    ensure(layout, now)
    assert JoinToken.objects.count() == 2  # the first join may never have been answered
    (layout.agent_state / "identity.json").write_text(json.dumps({"node_id": "node-x"}))
    ensure(layout, now)
    assert JoinToken.objects.count() == 2


@pytest.mark.django_db
def test_odd_paths_survive_the_settings_file(tmp_path: Path, now: datetime) -> None:
    layout = Layout(tmp_path / 'a "b" \\ 模型')
    layout.root.mkdir()
    ensure(layout, now)
    assert tomllib.loads(layout.agent_config.read_text())["state_dir"] == str(layout.agent_state)


def test_starts_hold_ranges_that_do_not_meet() -> None:
    """Also where their web ports prefer the same one; a range comes back with the end of its start."""
    held = [hold_range(3333) for _ in range(3)]
    try:
        taken = [number for _, (first, last) in held for number in range(first, last + 1)]
        assert len(taken) == len(set(taken)) == 3 * 399
        assert 20000 <= min(taken) <= max(taken) < 32768
    finally:
        for guard, _ in held:
            guard.close()


def test_no_range_left_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ports, "STARTS", 2)  # tests beside this one need ranges too
    held = []
    try:
        with pytest.raises(NotReady, match="No range of ports between 20000 and 20799 is free"):
            for _ in range(3):
                held.append(hold_range(3333))
    finally:
        for guard, _ in held:
            guard.close()


@pytest.mark.django_db
def test_new_password_by_command() -> None:
    user = factories.make_user()
    out = io.StringIO()
    call_command("password", user.username, stdout=out)
    told = out.getvalue().split("password ")[1].split()[0]
    assert User.objects.get(pk=user.pk).check_password(told)
    with pytest.raises(CommandError, match="There is no user nobody-here"):
        call_command("password", "nobody-here")


def test_greeting_shows_a_secret_only_where_there_is_one() -> None:
    first = greeting.sign_in_lines("http://h:1", greeting.People("admin", "pw-1", "demo", "pw-2"))
    assert ["pw-1" in first[0], "pw-2" in first[1]] == [True, True]
    later = greeting.sign_in_lines("http://h:1", greeting.People("admin", None, "demo", None))
    assert all("make password USER=" in line for line in later)
    elsewhere = greeting.People("admin", None, "demo", None, make_with=prelaunch.named_data_dir(Path("/a b")))
    told = greeting.sign_in_lines("http://h:1", elsewhere)
    assert told[0].endswith("make password USER=admin DATA_DIR='/a b'")
    assert prelaunch.named_data_dir(prelaunch.ROOT / "data") == ""
    made = greeting.call_lines("http://h:1", "m", "sk-1")
    assert "export OPENAI_BASE_URL=http://h:1/v1" in made
    assert "export OPENAI_API_KEY=sk-1" in made
    for key in ("sk-1", None):
        trusting = greeting.call_lines("https://h:1", "m", key, "/tls/server.crt")
        assert "export SSL_CERT_FILE=/tls/server.crt" in trusting[: trusting.index("")]
    assert not any("SSL_CERT_FILE" in line for line in made)
    assert not any("sk-" in line for line in greeting.call_lines("http://h:1", "m", None))
