"""Files that people fetched from nodes are copies, and in no backup (AGENT-12, OPS-03)."""

import tarfile
from pathlib import Path

import pytest

from apps.core.clock import utc_now
from apps.files.store import FOLDER
from apps.ops.backup import archive
from tests.apps.ops.test_backup import sources

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("OPS-03", "AGENT-12")]


def test_fetched_files_are_left_out_and_all_others_are_there(tmp_path: Path) -> None:
    server = sources(tmp_path)
    for name in (f"{FOLDER}/fr-x/0", f"logs/{FOLDER}/1/0.log"):
        file = server.files / name
        file.parent.mkdir(parents=True)
        file.write_text("x")
    archive.write(tmp_path / "backup", server, version="1", now=utc_now())
    with tarfile.open(tmp_path / "backup") as made:
        names = made.getnames()
    assert f"files/logs/{FOLDER}/1/0.log" in names
    assert not [name for name in names if "fr-x" in name]
