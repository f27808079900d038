"""`manage.py backup`, `restore` and `resume-removals` as an operator types them (OPS-03)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.ops import keys_file, preflight
from tests.stack import ROOT, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.req("OPS-03")]


# Mounts each folder upon itself, shows that nobody can rename it then, and goes on as the command.
MOUNTED = """
for folder in files usage; do
  mount --bind "$0/$folder" "$0/$folder" || exit 77
  if mv "$0/$folder" "$0/moved" 2>/dev/null; then exit 78; fi
done
exec "$@"
"""
# kill -9 as the first of the present files leaves its folder.
DIES = """
import os, signal, sys
def hook(event, arguments):
    if event == "os.rename" and os.path.basename(os.path.dirname(arguments[1])) == "former":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
import manage
sys.argv = ["manage.py", *sys.argv[1:]]
manage.main()
"""


def manage(data_dir: Path, *words: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    return python(data_dir, "manage.py", *words, before=before)


def python(data_dir: Path, *words: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, sys.executable, *words],
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


@pytest.fixture
def backed_up(tmp_path: Path) -> Path:
    """A data directory with one person and one stored file, and `one.tar` beside it; later both changed."""
    data_dir = tmp_path / "data"
    (data_dir / "files").mkdir(mode=0o700, parents=True)
    (data_dir / "usage").mkdir()
    (data_dir / "files" / "kept").write_text("as it was")
    keys_file.ensure_keys(data_dir)
    make = "from apps.tenants.services import create_user; create_user(username='%s', password='x' * 12)"
    for words in (
        ("migrate",),
        ("shell", "-c", make % "anna"),
        ("backup", str(tmp_path / "one.tar")),
        ("shell", "-c", make % "later"),
    ):
        done = manage(data_dir, *words)
        assert done.returncode == 0, done.stderr
    (data_dir / "files" / "kept").write_text("changed")
    return data_dir


def test_folders_that_are_mount_points_keep_their_place(backed_up: Path) -> None:
    """As in a container: volumes, which nobody can rename. Where no mount is permitted here, without."""
    room = ("unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]))
    permitted = subprocess.run([*room, "true"], capture_output=True).returncode == 0
    before = (*room, "sh", "-c", MOUNTED, str(backed_up)) if permitted else ()
    backup = backed_up.with_name("one.tar")
    done = manage(backed_up, "restore", str(backup), "--replace", before=before)
    assert done.returncode == 0, done.stderr
    assert people(backed_up) == "anna"
    assert (backed_up / "files" / "kept").read_text() == "as it was"
    assert [path.name for path in (backed_up / "files").iterdir()] == ["kept"]


def test_removals_wait_for_a_whole_restore(backed_up: Path) -> None:
    words = ("restore", str(backed_up.with_name("one.tar")), "--replace")
    assert python(backed_up, "-c", DIES, *words).returncode == -signal.SIGKILL
    assert people(backed_up) == "anna"
    refused = manage(backed_up, "resume-removals")
    assert refused.returncode != 0
    assert "did not come to its end" in refused.stderr and "restore FILE --replace" in refused.stderr
    assert manage(backed_up, *words).returncode == 0
    assert (backed_up / "files" / "kept").read_text() == "as it was"
    assert "Removals go on." in manage(backed_up, "resume-removals").stdout
