"""A consistent copy of the database while others write, and its way back; which kind of database it is.

A copy takes the place of the present database in one step, together with the statements that belong
to it: whoever reads sees all of the old or all of the new. Never touches another database.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.ops.backup import postgresql, sqlite
from apps.ops.preflight import NotReady

KINDS = {"django.db.backends.sqlite3": "sqlite", "django.db.backends.postgresql": "postgresql"}
MEMBERS = {"sqlite": "database.sqlite3", "postgresql": "database.dump"}


def kind_of(database: Mapping[str, Any]) -> str:
    """`sqlite` or `postgresql`, from a value of settings.DATABASES. Raises NotReady for another."""
    try:
        return KINDS[str(database["ENGINE"])]
    except KeyError:
        raise NotReady(f"A database of {database['ENGINE']} can not be backed up; use PostgreSQL.") from None


def require_programs(database: Mapping[str, Any]) -> int | None:
    """Before anything is done: raises NotReady where PostgreSQL's client is missing or older than its
    server. The client's major version; None for SQLite, which needs none."""
    return postgresql.require_client(database) if kind_of(database) == "postgresql" else None


def dump(database: Mapping[str, Any], target: Path) -> None:
    """Write all rows as of one moment into `target`. Raises NotReady."""
    if kind_of(database) == "sqlite":
        sqlite.dump(Path(database["NAME"]), target)
    else:
        postgresql.dump(database, target)


def check(kind: str, source: Path) -> None:
    """Raises NotReady where a copy can not be read."""
    if kind == "sqlite":
        sqlite.check(source)
    else:
        postgresql.check(source)


def load(database: Mapping[str, Any], source: Path, settling: Sequence[str]) -> None:
    """Put the copy, with the statements `settling` run on it, in the place of the present database.
    Where this fails or is killed, the present one stays as it is. Raises NotReady."""
    if kind_of(database) == "sqlite":
        sqlite.load(Path(database["NAME"]), source, settling)
    else:
        postgresql.load(database, source, settling)
