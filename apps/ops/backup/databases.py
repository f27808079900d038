"""A consistent copy of the database while others write, and its way back.

SQLite by its backup API (a plain copy of a live file loses rows), PostgreSQL by pg_dump and
pg_restore with the password in their environment. Never touches another database.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from apps.ops.preflight import NotReady
from apps.ops.production.packages import find_postgresql

KINDS = {"django.db.backends.sqlite3": "sqlite", "django.db.backends.postgresql": "postgresql"}
MEMBERS = {"sqlite": "database.sqlite3", "postgresql": "database.dump"}


def kind_of(database: Mapping[str, Any]) -> str:
    """`sqlite` or `postgresql`, from a value of settings.DATABASES. Raises NotReady for another."""
    try:
        return KINDS[str(database["ENGINE"])]
    except KeyError:
        raise NotReady(f"A database of {database['ENGINE']} can not be backed up; use PostgreSQL.") from None


def dump(database: Mapping[str, Any], target: Path) -> None:
    """Write all rows as of one moment into `target`. Raises NotReady."""
    if kind_of(database) == "sqlite":
        source = f"file:{database['NAME']}?mode=ro"
        with (
            closing(sqlite3.connect(source, uri=True, timeout=20)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)  # all pages in one read transaction: writers go on meanwhile
        return
    arguments = ["--format=custom", "--no-owner", "--no-privileges", f"--file={target}"]
    _run("pg_dump", arguments, database)


def check(kind: str, source: Path) -> None:
    """Raises NotReady where a copy can not be read."""
    if kind == "postgresql":
        _run("pg_restore", ["--list", str(source)], None)
        return
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as copy:
            found = copy.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.DatabaseError as error:
        found = (str(error),)
    if found != ("ok",):
        raise NotReady(f"The database in the backup is damaged ({found[0]}); take another backup.")


def load(database: Mapping[str, Any], source: Path) -> None:
    """Put the copy in the place of the present database, whose rows are gone after that. Raises NotReady."""
    if kind_of(database) == "sqlite":
        target = Path(database["NAME"])
        part = target.with_name(target.name + ".part")
        shutil.copyfile(source, part)
        part.chmod(0o600)
        for rest in ("-wal", "-shm"):
            target.with_name(target.name + rest).unlink(missing_ok=True)
        part.replace(target)
        return
    name = f"--dbname={database['NAME']}"
    empty = ["--quiet", "--set=ON_ERROR_STOP=1", "--no-psqlrc", name]
    _run("psql", [*empty, "--command=DROP SCHEMA public CASCADE; CREATE SCHEMA public"], database)
    # All of it or nothing; the usual schema itself is not in a dump.
    arguments = [
        "--no-owner",
        "--no-privileges",
        "--single-transaction",
        "--exit-on-error",
        name,
        str(source),
    ]
    _run("pg_restore", arguments, database)


def _run(program: str, arguments: list[str], database: Mapping[str, Any] | None) -> None:
    home = find_postgresql(os.environ.get("PATH", os.defpath))
    found = str(home / program) if home and (home / program).exists() else shutil.which(program)
    if found is None:
        raise NotReady(f"{program} is not installed; install it by: apt-get install postgresql-client")
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    if database is not None:
        environment |= {
            "PGHOST": str(database.get("HOST") or ""),
            "PGPORT": str(database.get("PORT") or 5432),
            "PGUSER": str(database.get("USER") or ""),
            "PGPASSWORD": str(database.get("PASSWORD") or ""),
            "PGDATABASE": str(database["NAME"]),
            "PGCONNECT_TIMEOUT": "5",
        }
    done = subprocess.run(  # noqa: S603
        [found, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotReady(f"{program} failed: {words[-1]}")
