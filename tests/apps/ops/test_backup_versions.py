"""PostgreSQL's programs beside its server: which versions go together (OPS-03)."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.core.clock import utc_now
from apps.ops.backup import archive, postgresql
from apps.ops.preflight import NotReady
from apps.ops.production.packages import find_client

pytestmark = pytest.mark.req("OPS-03")

DATABASE = {"ENGINE": "django.db.backends.postgresql", "NAME": "heteroflow"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> archive.Sources:
    """A server of version 17, and programs of version 15."""

    @contextmanager
    def connect(database: Any) -> Iterator[Any]:
        yield SimpleNamespace(info=SimpleNamespace(server_version=170004))

    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 15.9 (Debian 15.9-0+deb12u1)'\n")
    program.chmod(0o755)
    monkeypatch.setattr(postgresql, "connect", connect)
    monkeypatch.setattr(postgresql, "find", lambda name: str(program))
    return archive.Sources(DATABASE, tmp_path / "server" / "files", tmp_path / "server" / "usage")


def make_backup(target: Path, made_by: int) -> None:
    text = json.dumps(
        {"format": 1, "database": "postgresql", "postgresql": made_by, "made_at": "2026-01-01T00:00:00+00:00"}
    ).encode()
    with tarfile.open(target, "w") as made:
        member = tarfile.TarInfo(archive.MANIFEST)
        member.size = len(text)
        made.addfile(member, io.BytesIO(text))


@pytest.mark.parametrize("word", ["backup", "restore"])
def test_programs_older_than_the_server_are_refused_before_anything(
    place: archive.Sources, tmp_path: Path, word: str
) -> None:
    make_backup(tmp_path / "one.tar", made_by=15)
    with pytest.raises(NotReady) as refused:
        if word == "backup":
            archive.write(tmp_path / "two.tar", place, version="1", now=utc_now())
        else:
            archive.restore(tmp_path / "one.tar", place)
    said = str(refused.value)
    assert "PostgreSQL 17" in said and "version 15" in said and "postgresql-client-17" in said
    assert not list(tmp_path.glob("two.tar*"))
    assert not place.files.parent.exists()


def test_a_backup_of_a_newer_program_is_refused_before_anything(
    place: archive.Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "require_client", lambda database: 15)
    make_backup(tmp_path / "one.tar", made_by=17)
    with pytest.raises(NotReady, match=r"made by pg_dump 17, and pg_restore here is of version 15"):
        archive.restore(tmp_path / "one.tar", place)
    assert not place.files.parent.exists()


def test_the_newest_client_is_taken_without_a_server_of_its_version(tmp_path: Path) -> None:
    for version, programs in (("15", ("postgres", "initdb", "pg_dump")), ("17", ("pg_dump",))):
        (tmp_path / version / "bin").mkdir(parents=True)
        for name in programs:
            (tmp_path / version / "bin" / name).touch(mode=0o755)
    assert find_client("pg_dump", "", tmp_path) == tmp_path / "17" / "bin" / "pg_dump"
    assert find_client("psql", "", tmp_path) is None


@pytest.mark.parametrize(("server", "passed"), [(15, False), (17, True)])
def test_an_older_server_is_not_told_what_only_newer_ones_know(server: int, passed: bool) -> None:
    script = b"SET lock_timeout = 0;\nSET transaction_timeout = 0;\nCREATE TABLE x ();\n"
    taken = io.BytesIO()
    postgresql._pass_on(io.BytesIO(script), taken, server)
    assert (b"transaction_timeout" in taken.getvalue()) is passed
    assert taken.getvalue().endswith(b"lock_timeout = 0;\nCREATE TABLE x ();\n") is not passed


def test_what_stands_behind_the_address_reaches_the_programs() -> None:
    given = {**DATABASE, "OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "pool": {}}}
    environment = postgresql._environment(given)
    assert (environment["PGSSLMODE"], environment["PGSSLROOTCERT"]) == ("verify-full", "/ca.pem")
    assert "pool" not in str(environment)
