"""`manage.py backup`, `restore` and `resume-removals` as an operator types them (OPS-03)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.ops import keys_file, preflight
from tests.stack import ROOT, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.req("OPS-03")]


def manage(data_dir: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=clean_environment(DATA_DIR=str(data_dir)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def people(data_dir: Path) -> str:
    code = "from apps.tenants.models import User; print(*User.objects.values_list('username', flat=True))"
    return manage(data_dir, "shell", "--no-imports", "-c", code).stdout.strip()


def test_from_the_backup_to_the_resumed_removals(tmp_path: Path) -> None:
    data_dir, backup = tmp_path / "data", tmp_path / "one.tar"
    data_dir.mkdir(mode=0o700)
    keys_file.ensure_keys(data_dir)
    assert manage(data_dir, "migrate").returncode == 0
    make = "from apps.tenants.services import create_user; create_user(username='%s', password='x' * 12)"
    assert manage(data_dir, "shell", "-c", make % "anna").returncode == 0
    done = manage(data_dir, "backup", str(backup))
    assert done.returncode == 0, done.stderr
    assert "Keep the keys" in done.stdout
    assert manage(data_dir, "shell", "-c", make % "later").returncode == 0
    assert people(data_dir) == "anna later"

    refused = manage(data_dir, "restore", str(backup))
    assert refused.returncode != 0
    assert "--replace" in refused.stderr
    held = preflight.hold_data_dir(data_dir)
    running = manage(data_dir, "restore", str(backup), "--replace")
    assert running.returncode != 0
    assert "already runs" in running.stderr
    os.close(held)
    assert people(data_dir) == "anna later"

    restored = manage(data_dir, "restore", str(backup), "--replace")
    assert restored.returncode == 0, restored.stderr
    assert "resume-removals" in restored.stdout
    assert people(data_dir) == "anna"
    assert "Removals go on." in manage(data_dir, "resume-removals").stdout
    assert "were not waiting" in manage(data_dir, "resume-removals").stdout
