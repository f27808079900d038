"""What a backup's file may hold: plain files and folders that stay below the folder they are put into."""

import io
import tarfile
from pathlib import Path

import pytest

from apps.ops.backup import archive

pytestmark = pytest.mark.req("OPS-03")


def packed(*members: tarfile.TarInfo) -> tarfile.TarFile:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for member in members:
            member.size = 3 if member.isreg() else 0
            made.addfile(member, io.BytesIO(b"one"))
    file.seek(0)
    return tarfile.open(fileobj=file)


def named(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "elsewhere"
    return member


def test_files_and_folders_come_out(tmp_path: Path) -> None:
    whole = packed(named("files", tarfile.DIRTYPE), named("files/one.log"), named(archive.END))
    archive._extract(whole, tmp_path)
    assert (tmp_path / "files" / "one.log").read_text() == "one"


@pytest.mark.parametrize(
    "member",
    [
        named("../outside"),
        named("files/../../outside"),
        named("{root}/outside"),
        named("link", tarfile.SYMTYPE),
        named("hard", tarfile.LNKTYPE),
        named("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name,
)
def test_what_reaches_further_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    room = tmp_path / "room"
    room.mkdir()
    member.name = member.name.replace("{root}", str(tmp_path))
    with pytest.raises(tarfile.TarError):
        archive._extract(packed(member), room)
    assert list(tmp_path.rglob("*")) == [room]
