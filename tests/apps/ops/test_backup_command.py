"""`manage.py backup` where its file exists already."""

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.ops.backup import archive


@pytest.mark.req("OPS-03")
def test_an_older_backup_is_replaced_only_where_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "monday.tar"
    file.write_text("last week's")

    def write(target: Path, *args: object, **named: object) -> int:
        return target.write_text("this week's")

    monkeypatch.setattr(archive, "write", write)
    with pytest.raises(CommandError, match=r"monday\.tar exists.*--replace"):
        call_command("backup", str(file))
    assert file.read_text() == "last week's"
    call_command("backup", str(file), "--replace")
    assert file.read_text() == "this week's"
