"""SQLite's copy and its way back: the backup API (a plain copy of a live file loses rows), and a rename."""

import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from apps.ops.preflight import NotReady


def dump(database: Path, target: Path) -> None:
    """All pages in one read transaction: writers go on meanwhile. Raises NotReady, also for a full disk."""
    try:
        with (
            closing(sqlite3.connect(_read_only(database), uri=True, timeout=20)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise NotReady(f"The database {database.name} can not be copied ({error}).") from None


def check(source: Path) -> None:
    """Raises NotReady where the copy is damaged."""
    try:
        with closing(sqlite3.connect(_read_only(source), uri=True)) as copy:
            found = copy.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.DatabaseError as error:
        found = (str(error),)
    if found != ("ok",):
        raise NotReady(f"The database in the backup is damaged ({found[0]}); take another backup.")


def _read_only(database: Path) -> str:
    """The address of a file, whatever signs are in its name."""
    return f"{database.absolute().as_uri()}?mode=ro"


def load(database: Path, source: Path, settling: Sequence[str]) -> None:
    """Settle a copy beside the present file and rename it over that one. Raises NotReady or OSError."""
    part = database.with_name(database.name + ".part")
    for name in (part, *_companions(part)):  # of one that was killed
        name.unlink(missing_ok=True)
    shutil.copyfile(source, part)
    part.chmod(0o600)
    try:
        with closing(sqlite3.connect(part)) as copy:
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, whole by itself
            copy.executescript(";\n".join(["BEGIN", *settling, "COMMIT;"]))
    except sqlite3.DatabaseError as error:
        raise NotReady(f"The database in the backup can not be used ({error}).") from None
    _write_through(part)
    _fold_in(database)
    part.replace(database)
    _write_through(database.parent)


def _fold_in(database: Path) -> None:
    """The present file takes in what stands in its write-ahead log, which would belong to the new one
    after the rename: killed in between, the old rows are all there."""
    if database.exists():
        try:
            with closing(sqlite3.connect(database, timeout=5)) as present:
                mode = present.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise NotReady(f"The present database is in use ({error}); end what has it open.") from None
        except sqlite3.DatabaseError:  # damaged, maybe why it is restored: its log is worth nothing either
            mode = "delete"
        if mode != "delete":
            raise NotReady("The present database is in use; end what has it open.")
    for name in _companions(database):
        name.unlink(missing_ok=True)


def _companions(database: Path) -> list[Path]:
    return [database.with_name(database.name + rest) for rest in ("-wal", "-shm", "-journal")]


def _write_through(path: Path) -> None:
    """Its bytes are on the disk before what comes after."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
