"""The chain on the production profile: SDK, TLS, nginx, gateway, engine, and what lies beside it."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from apps.ops.backup import archive
from apps.ops.rest import ApiRefusal
from tests.fakes.tiny_model import ANSWER
from tests.production_stack import ProductionStack
from tests.stack import ROOT, clean_environment, until

pytestmark = pytest.mark.req("OPS-03")


def test_official_sdk_through_the_front_proxy(production: ProductionStack) -> None:
    assert production.ask() == ANSWER
    stream = production.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=16
    )
    parts = list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER
    assert len(parts) > 4, "the proxy hands each event on as it comes"


@pytest.mark.req("GW-12")
def test_every_call_is_counted_once_whichever_gateway_took_it(production: ProductionStack) -> None:
    issued = production.api().call("POST", "/api/v1/api-keys", {"name": "counted"})
    until(lambda: _answers(production, issued["key"]), "the key is known")
    query = "SELECT count(*) FROM usage_usagerecord WHERE key_id = ? AND http_status = 200"
    until(lambda: production.rows(query, issued["id"])[0][0] >= 1, "the first is a row")
    before = production.rows(query, issued["id"])[0][0]
    for _ in range(6):
        assert _answers(production, issued["key"])
    until(lambda: production.rows(query, issued["id"])[0][0] >= before + 6, "the records are rows")
    assert production.rows(query, issued["id"])[0][0] == before + 6


def _answers(stack: ProductionStack, key: str) -> bool:
    answer = stack.openai(key).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=16
    )
    return answer.choices[0].message.content == ANSWER


def test_pages_come_with_their_files_and_their_safety(production: ProductionStack) -> None:
    with urllib.request.urlopen(f"{production.base_url}/admin/login/", timeout=10) as page:
        assert page.status == 200
        assert "max-age=" in page.headers["Strict-Transport-Security"]
        assert "Secure" in page.headers["Set-Cookie"]
    with urllib.request.urlopen(f"{production.base_url}/static/img/mark.svg", timeout=10) as picture:
        assert picture.status == 200


def test_websockets_go_to_the_asgi_processes(production: ProductionStack) -> None:
    def status() -> int:
        with pytest.raises(InvalidStatus) as refused:
            address = f"{production.base_url.replace('https', 'wss')}/ws/agent"
            connect(address, ssl=production.trust, open_timeout=10)
        return refused.value.response.status_code

    # By the consumer: no credential. The proxy may think for a second that one killed before is away.
    until(lambda: status() == 403, lambda: f"{status()} is 403", 20)


def test_long_bodies_end_at_the_proxy(production: ProductionStack) -> None:
    with pytest.raises(ApiRefusal) as refused:
        production.api().call("POST", "/api/v1/api-keys", {"name": "x" * 3_000_000})
    assert refused.value.status == 413


def test_other_commands_find_its_database(production: ProductionStack) -> None:
    assert production.kept("DATABASE_URL").startswith("postgres://")
    assert (production.data_dir / "production.env").stat().st_mode & 0o777 == 0o600


def manage(stack: ProductionStack, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command as an operator types it: DATA_DIR is all that it is told."""
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=clean_environment(DATA_DIR=str(stack.data_dir)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_backup_while_it_runs_and_no_restore(production: ProductionStack, tmp_path: Path) -> None:
    done = manage(production, "backup", str(tmp_path / "one.tar"))
    assert done.returncode == 0, done.stderr
    assert archive.read_manifest(tmp_path / "one.tar")["database"] == "postgresql"
    refused = manage(production, "restore", str(tmp_path / "one.tar"), "--replace")
    assert refused.returncode != 0
    assert "other connections use the database" in refused.stderr
    assert production.ask() == ANSWER
