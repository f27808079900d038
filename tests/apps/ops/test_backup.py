"""Backup while others write, and what comes back from it (OPS-03). On the suite's own kind of database."""

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from apps.core.clock import utc_now
from apps.core.models import Lease, PublishedVersion
from apps.ops.backup import archive, databases
from apps.ops.preflight import NotReady
from apps.usage import flusher
from apps.usage.files import new_name

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("OPS-03")]


def sources(tmp_path: Path, database: dict[str, Any] | None = None) -> archive.Sources:
    return archive.Sources(
        database or connection.settings_dict, tmp_path / "server" / "files", tmp_path / "server" / "usage"
    )


@contextmanager
def another_database(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An empty database beside the suite's, of the same kind."""
    present = connection.settings_dict
    if connection.vendor == "sqlite":
        yield {**present, "NAME": str(tmp_path / "other.sqlite3")}
        return
    name = f"restored_{secrets.token_hex(4)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        yield {**present, "NAME": name}
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def writing() -> Iterator[list[int]]:
    """A thread that writes pairs of rows, each pair in one transaction; the list grows with them."""
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        try:
            while not stop.is_set():
                number = len(written)
                with transaction.atomic():
                    PublishedVersion.objects.create(name=f"pair-{number}", version=number)
                    Lease.objects.create(name=f"pair-{number}", fence=number)
                written.append(number)
        finally:
            connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join(20)


def test_a_backup_while_writing_is_of_one_moment(tmp_path: Path) -> None:
    place = sources(tmp_path)
    place.files.mkdir(parents=True)
    (place.files / "logs").mkdir()
    (place.files / "logs" / "one.log").write_text("text")
    with writing() as written:
        while len(written) < 20:
            threading.Event().wait(0.01)
        before = len(written)
        archive.write(tmp_path / "backup.tar", place, version="1", now=utc_now())
        after = len(written)
    assert (tmp_path / "backup.tar").stat().st_mode & 0o777 == 0o600
    with another_database(tmp_path) as database:
        back = archive.Sources(database, tmp_path / "back" / "files", tmp_path / "back" / "usage")
        archive.restore(tmp_path / "backup.tar", back)
        assert (back.files / "logs" / "one.log").read_text() == "text"
        copy = tmp_path / "copy"
        databases.dump(database, copy)  # what came back can be backed up again
        count = count_pairs(database)
    assert count[0] == count[1], "a pair is there whole or not at all"
    assert before <= count[0] <= after + 1


def count_pairs(database: dict[str, Any]) -> tuple[int, int]:
    queries = [
        f"SELECT count(*) FROM {table} WHERE name LIKE 'pair-%'"
        for table in ("core_publishedversion", "core_lease")
    ]
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(database["NAME"])) as link:
            first, second = (link.execute(query).fetchone()[0] for query in queries)
    else:
        address = {name: database[name.upper()] for name in ("host", "port", "user", "password")}
        with psycopg.connect(**{k: v for k, v in address.items() if v}, dbname=database["NAME"]) as link:
            first, second = (link.execute(query).fetchone()[0] for query in queries)
    return first, second


def test_a_journal_that_ends_during_the_backup_is_whole_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that come after the database's moment, in a file that the flusher then removes."""
    place = sources(tmp_path)
    place.journals.mkdir(parents=True)
    journal = place.journals / str(new_name())
    line = b'{"request_id":"%s","started_at":1.0,"path":"/v1","ending":"completed","http_status":200}\n'
    journal.write_bytes(line % b"one")
    real = databases.dump

    def dump_then_go_on(database: dict[str, Any], target: Path) -> None:
        real(database, target)
        with journal.open("ab") as more:
            more.write(line % b"two")
        monkeypatch.setattr(flusher, "owner_lives", lambda name: False)
        flusher.flush(place.journals, own_pid=1)
        assert not journal.exists()

    monkeypatch.setattr(databases, "dump", dump_then_go_on)
    archive.write(tmp_path / "backup.tar", place, version="1", now=utc_now())
    monkeypatch.setattr(databases, "dump", real)
    with another_database(tmp_path) as database:
        back = archive.Sources(database, tmp_path / "back" / "files", tmp_path / "back" / "usage")
        archive.restore(tmp_path / "backup.tar", back)
    assert (back.journals / journal.name).read_bytes() == line % b"one" + line % b"two"


def test_two_backups_at_once_to_one_file_leave_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one that is called each night takes longer than a day."""
    place, target, dump, begun = sources(tmp_path), tmp_path / "backup.tar", databases.dump, []

    def dump_beside_another(*arguments: Any) -> None:
        dump(*arguments)
        begun.append(arguments)
        if len(begun) == 1:
            archive.write(target, place, version="second", now=utc_now())
            assert archive.read_manifest(target)["version"] == "second"

    monkeypatch.setattr(databases, "dump", dump_beside_another)
    archive.write(target, place, version="first", now=utc_now())
    assert archive.read_manifest(target)["version"] == "first"
    assert list(tmp_path.glob("backup*")) == [target]


def test_what_is_no_backup_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    place = sources(tmp_path)
    place.files.mkdir(parents=True)
    (place.files / "kept").write_text("kept")
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(NotReady, match=r"gone\.tar cannot be read \(No such file or directory\)"):
        archive.read_manifest(tmp_path / "gone.tar")
    with pytest.raises(NotReady, match=r"is no backup of HeteroFlow"):
        archive.restore(tmp_path / "text.tar", place)
    assert (place.files / "kept").read_text() == "kept"


def test_another_kind_of_database_is_refused(tmp_path: Path) -> None:
    archive.write(tmp_path / "backup.tar", sources(tmp_path), version="1", now=utc_now())
    engines = {"sqlite": "postgresql", "postgresql": "sqlite3"}
    other = {**connection.settings_dict, "ENGINE": f"django.db.backends.{engines[connection.vendor]}"}
    with pytest.raises(NotReady, match="holds a database of"):
        archive.restore(tmp_path / "backup.tar", sources(tmp_path, other))


def test_a_disk_that_refuses_leaves_no_half_backup(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        archive.write(tmp_path / "absent" / "backup.tar", sources(tmp_path), version="1", now=utc_now())
    assert not list(tmp_path.glob("**/backup*"))
