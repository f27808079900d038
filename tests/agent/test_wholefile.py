"""A file of the agent's is there whole, and its owner's only (AGENT-14)."""

import errno
import os
from pathlib import Path

import pytest

from agent.wholefile import write_whole

pytestmark = pytest.mark.req("AGENT-01", "AGENT-14")


@pytest.mark.parametrize("lasting", [True, False])
def test_it_takes_the_place_of_what_was_there_and_is_nobody_elses(tmp_path: Path, *, lasting: bool) -> None:
    file, part = tmp_path / "kept.json", tmp_path / "kept.json.part"
    file.write_bytes(b"old")
    part.write_bytes(b"half of something longer")  # a run that was killed left it, open to all
    part.chmod(0o644)
    write_whole(file, b"new", lasting=lasting)
    assert file.read_bytes() == b"new" and file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["kept.json"]


def test_content_is_on_the_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "kept", []
    sync = os.fsync

    def note(fd: int) -> None:
        seen.append((Path(f"/proc/self/fd/{fd}").readlink().name, file.exists()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    write_whole(file, b"new")
    assert seen == [("kept.part", False), (tmp_path.name, True)]
    write_whole(file, b"newer", lasting=False)
    assert len(seen) == 2


def test_the_old_one_stands_where_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept"
    file.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
