"""A restore that is killed anywhere: all of the old, or the new with removals held (OPS-03).

On the suite's own kind of database. The restores run in children of this process, which an audit hook
kills at one of the moments at which they touch a file, a folder, a program or the database.
"""

import errno
import os
import signal
import sqlite3
import sys
import tarfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.core import holds
from apps.core.clock import utc_now
from apps.core.models import PublishedVersion
from apps.ops.backup import archive, places, postgresql
from apps.ops.preflight import NotReady
from tests.apps.ops.test_backup import another_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("OPS-03")]

OLD, NEW = 100, 200
MOMENTS = ("os.rename", "os.remove", "os.mkdir", "shutil.rmtree", "subprocess.Popen", "sqlite3.connect")
Hook = Callable[[str, tuple[Any, ...]], None]


class Server:
    """A place that is restored to, with a backup of an old and of a new state at hand."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        self.place = archive.Sources(database, folder / "server" / "files", folder / "server" / "usage")
        for version in (OLD, NEW):
            self._make_backup(version)

    def backup(self, version: int) -> Path:
        return self.folder / f"{version}.tar"

    def _make_backup(self, version: int) -> None:
        PublishedVersion.objects.update_or_create(name="state", defaults={"version": version})
        made = archive.Sources(
            connection.settings_dict,
            self.folder / f"made{version}" / "f",
            self.folder / f"made{version}" / "u",
        )
        (made.files / "logs").mkdir(parents=True)
        (made.files / "logs" / "one").write_text(str(version))
        (made.files / f"only-{version}").write_text("")
        made.journals.mkdir()
        (made.journals / "usage-1-1-000001-aaaaaaaaaaaa.jsonl").write_text(str(version))
        archive.write(self.backup(version), made, version="1", now=utc_now())

    def begin_old(self) -> None:
        """Restored and resumed long ago."""
        archive.restore(self.backup(OLD), self.place)
        archive.finish(self.place)
        self.query(f"UPDATE core_lease SET holder = '' WHERE name = '{holds.REMOVALS}'")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if connection.vendor == "sqlite":
            with closing(sqlite3.connect(self.place.database["NAME"])) as link, link:
                return link.execute(sql).fetchall()
        with postgresql.connect(self.place.database) as link:
            answer = link.execute(sql)
            return answer.fetchall() if answer.description else []

    def rows(self) -> tuple[int, bool]:
        """The restored state's number (a restore raises it by one), and whether removals are held."""
        found = self.query("SELECT version FROM core_publishedversion WHERE name = 'state'")
        held = self.query(f"SELECT 1 FROM core_lease WHERE name = '{holds.REMOVALS}' AND holder <> ''")
        return int(found[0][0]) - 1, bool(held)

    def stored(self) -> dict[str, str]:
        """What lies in both folders."""
        return {
            str(path.relative_to(folder)): path.read_text()
            for folder in (self.place.files, self.place.journals)
            for path in folder.rglob("*")
            if path.is_file() and places.CORNER not in path.parts
        }


def state(version: int) -> dict[str, str]:
    return {
        "logs/one": str(version),
        f"only-{version}": "",
        "usage-1-1-000001-aaaaaaaaaaaa.jsonl": str(version),
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with another_database(tmp_path) as database:
        made = Server(tmp_path, database)
        made.begin_old()
        yield made


def in_a_child(server: Server, prepare: Callable[[], None]) -> int:
    """The restore of the new state; the child's wait status, 0 where it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            prepare()
            archive.restore(server.backup(NEW), server.place)
            archive.finish(server.place)
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def dies_at(number: int) -> Callable[[], None]:
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in MOMENTS or (event == "open" and arguments[2] & os.O_WRONLY):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.addaudithook(hook)


def test_a_death_at_any_moment_leaves_the_old_or_the_new_with_removals_held(server: Server) -> None:
    outcomes: list[tuple[int, bool]] = []
    number = 0
    while True:
        number += 1
        status = in_a_child(server, dies_at(number))
        if status == 0:
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        outcomes.append(server.rows())
        if outcomes[-1] == (OLD, False):
            assert server.stored() == state(OLD)
        else:
            assert outcomes[-1] == (NEW, True)
            assert archive.is_unfinished(server.place) or server.stored() == state(NEW)
            server.begin_old()
    assert (server.rows(), server.stored()) == ((NEW, True), state(NEW))
    assert not archive.is_unfinished(server.place)
    assert {path.name for path in server.folder.iterdir() if "sqlite3" in path.name} <= {"other.sqlite3"}
    assert (OLD, False) in outcomes and (NEW, True) in outcomes
    assert outcomes == sorted(outcomes), "the change is at one moment"


def test_a_death_in_the_middle_of_the_rows_leaves_the_old(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_and_die(*arguments: Any) -> None:
        if connection.vendor == "postgresql":
            source, target, _ = arguments
            target.write(source.read(200_000).rpartition(b"\n")[0])
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("apps.ops.backup.postgresql._pass_on", begin_and_die)
    monkeypatch.setattr("apps.ops.backup.sqlite._fold_in", begin_and_die)
    assert os.WTERMSIG(in_a_child(server, lambda: None)) == signal.SIGKILL
    assert (server.rows(), server.stored()) == ((OLD, False), state(OLD))


def test_a_damaged_backup_changes_nothing_and_leaves_nothing(server: Server) -> None:
    """Whole at its beginning, so that its list of contents is read, and cut off in the rows."""
    whole = server.backup(NEW).read_bytes()
    middle = len(whole) // 2
    server.backup(NEW).write_bytes(whole[:middle] + bytes(8192) + whole[middle + 8192 :])
    with pytest.raises(NotReady):
        archive.restore(server.backup(NEW), server.place)
    assert (server.rows(), server.stored()) == ((OLD, False), state(OLD))
    assert not archive.is_unfinished(server.place)


@pytest.mark.parametrize("damage", ["cut in a header", "cut between members", "a header with a wrong bit"])
def test_a_backup_whose_last_files_are_lost_changes_nothing(server: Server, damage: str) -> None:
    """tarfile itself takes each of these for the end of a whole file."""
    whole = bytearray(server.backup(NEW).read_bytes())
    with tarfile.open(server.backup(NEW)) as made:
        at = next(member.offset for member in made if member.name.startswith(f"{archive.FILES}/"))
    whole[at + 3] ^= 1
    cut = {"cut in a header": at + 100, "cut between members": at}.get(damage, len(whole))
    server.backup(NEW).write_bytes(whole[:cut])
    with pytest.raises(NotReady, match="is damaged"):
        archive.restore(server.backup(NEW), server.place)
    assert (server.rows(), server.stored()) == ((OLD, False), state(OLD))
    assert not archive.is_unfinished(server.place)


def test_folders_that_can_not_be_renamed_are_no_hindrance(server: Server) -> None:
    """As mount points under a root that is read-only; a `lost+found` there is not ours."""
    fixed = {str(server.place.files), str(server.place.journals)}
    root = str(server.place.files.parent)
    (server.place.files / "lost+found").mkdir()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in MOMENTS or (event == "open" and arguments[2] & os.O_WRONLY)
        for path in [str(one) for one in arguments if isinstance(one, str | Path)] if writes else []:
            if event in ("os.rename", "os.remove", "shutil.rmtree") and path in fixed:
                raise OSError(errno.EBUSY, "Device or resource busy", path)
            if str(Path(path).parent) == root and path not in fixed:
                raise OSError(errno.EROFS, "Read-only file system", path)

    assert in_a_child(server, lambda: sys.addaudithook(hook)) == 0
    assert (server.rows(), server.stored()) == ((NEW, True), state(NEW))
    assert (server.place.files / "lost+found").is_dir()


def test_a_backup_within_what_it_holds_is_refused(server: Server) -> None:
    with pytest.raises(NotReady, match="is part of a backup; use another folder"):
        archive.write(server.place.files / "one.tar", server.place, version="1", now=utc_now())
    inside = server.backup(NEW).rename(server.place.journals / "one.tar")
    with pytest.raises(NotReady, match="is part of a backup; use another folder"):
        archive.restore(inside, server.place)
