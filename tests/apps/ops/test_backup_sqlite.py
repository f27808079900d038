"""SQLite's copy where the file, its name or the disk are not as one would wish (OPS-03)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from apps.ops.backup import sqlite
from apps.ops.preflight import NotReady

pytestmark = pytest.mark.req("OPS-03")


def filled(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("CREATE TABLE one (text TEXT)")
        made.executemany("INSERT INTO one VALUES (?)", [("x" * 1000,)] * 200)
    return file


def test_a_folder_with_any_name_is_copied(tmp_path: Path) -> None:
    source = filled(tmp_path / "data #1, 50%20 sure? ü" / "server.sqlite3")
    sqlite.dump(source, source.with_name("copy"))
    sqlite.check(source.with_name("copy"))
    with closing(sqlite3.connect(source.with_name("copy"))) as copy:
        assert copy.execute("SELECT count(*) FROM one").fetchone() == (200,)


def test_what_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "server.sqlite3").write_bytes(b"text " * 1000)
    with pytest.raises(NotReady, match="can not be copied"):
        sqlite.dump(tmp_path / "server.sqlite3", tmp_path / "copy")
    with pytest.raises(NotReady, match="can not be copied"):
        sqlite.dump(tmp_path / "absent.sqlite3", tmp_path / "other")


def test_a_place_that_takes_nothing_is_said_so(tmp_path: Path) -> None:
    source = filled(tmp_path / "server.sqlite3")
    with pytest.raises(NotReady, match="can not be copied"):
        sqlite.dump(source, Path("/dev/full"))
