"""A damaged database or data directory: one sentence with the way out, and nothing is replaced (OPS-01)."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from django.db import OperationalError

from apps.ops import first_start
from apps.ops.layout import Layout
from apps.ops.preflight import NotReady
from apps.tenants.scope import viewer_of
from tests import factories
from tests.architecture.tree import ROOT
from tests.stack import clean_environment, free_port


@pytest.mark.django_db
@pytest.mark.parametrize("text", ['{"secret": "ab', "", "[]", "{}"])
def test_damaged_identity_of_the_local_node(tmp_path: Path, now: datetime, text: str) -> None:
    layout = Layout(tmp_path)
    layout.agent_state.mkdir(parents=True)
    identity = layout.agent_state / "identity.json"
    identity.write_text(text)
    with pytest.raises(NotReady, match=r"identity\.json is damaged.*or remove it"):
        first_start.ensure_agent(
            layout,
            operator=viewer_of(factories.make_operator()),
            server_url="http://127.0.0.1:3333",
            ports=(21000, 21399),
            now=now,
        )
    assert identity.read_text() == text


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("database is locked", "another program holds it"),
        ("database or disk is full", "free some space"),
        ("attempt to write a readonly database", "make it writable"),
        ("database disk image is malformed", "from a backup"),
        ("something new", "look after that file"),
    ],
)
def test_each_fault_of_the_database_names_its_way_out(tmp_path: Path, words: str, way_out: str) -> None:
    said = first_start.explain(OperationalError(words), Layout(tmp_path))
    assert said.startswith(f"The database {tmp_path}/heteroflow.sqlite3 can not be used ({words}): ")
    assert way_out in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heteroflow.sqlite3", "agent"])
def test_a_file_that_is_something_else(tmp_path: Path, name: str) -> None:
    """As a person meets it: the whole command, its last line, its exit code."""
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(b"something else " * 300)
    run = subprocess.run(
        [sys.executable, "manage.py", "up", "--no-demo"],
        cwd=ROOT,
        env=clean_environment(PORT=str(free_port()), DATA_DIR=str(data)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert str(data / name) in run.stderr.splitlines()[-1]
    assert "can not be used" in run.stderr.splitlines()[-1]
