"""`manage.py restore FILE`: puts a backup in the place of what is there. The server must be stopped.

From the moment that the rows are there no agent removes a container until `manage.py resume-removals`:
the rows are older than the machines, and what the rows do not know may be somebody's running service.
"""

import os
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import psycopg
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from apps.ops import preflight
from apps.ops.backup import archive, databases, postgresql
from apps.ops.management.commands.backup import sources
from apps.ops.preflight import NotReady
from apps.usage.flusher import flush

CLOSING_S = 3.0  # how long closed connections may take to be gone from PostgreSQL's list


class Command(BaseCommand):
    help = "Restores a backup; what is there is replaced. Stop the server first."
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--replace", action="store_true", help="really replace a database that holds something"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        source: Path = options["file"].resolve()
        place = sources()
        try:
            manifest = archive.read_manifest(source)
            lock = require_stopped(place)
            if not options["replace"] and holds_something():
                raise NotReady(
                    "The database is not empty, and a restore replaces all of it; say so by --replace."
                )
            close()
            archive.restore(source, place)
            call_command("migrate", verbosity=0, interactive=False)
            flush(place.journals, own_pid=os.getpid())  # this may be no gateway's folder: now they are rows
            archive.finish(place)
        except (NotReady, CommandError, OSError, DatabaseError, psycopg.Error) as error:
            raise CommandError(f"Not restored: {error}") from None
        finally:
            close()
        del lock
        self.stdout.write(
            f"Restored the backup of {manifest['made_at']}. Start the server and look whether services "
            "and nodes are as they should be. No agent removes a container until: manage.py resume-removals"
        )


def require_stopped(place: archive.Sources) -> int | None:
    """Raises NotReady while a server uses the database. On SQLite the answer is the lock to keep."""
    if databases.kind_of(place.database) == "sqlite":
        return preflight.hold_data_dir(Path(place.database["NAME"]).parent)
    close()  # our own pool's connections are not the server's
    with postgresql.connect(place.database) as link:
        give_up_at = time.monotonic() + CLOSING_S
        while others := count_others(link):
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.1)
    if others:
        raise NotReady(
            f"{others} other connections use the database; stop all server processes first, PostgreSQL "
            "alone stays up."
        )
    return None


def count_others(link: "psycopg.Connection[Any]") -> int:
    """How many connections beside this one use its database."""
    row = link.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ).fetchone()
    link.rollback()  # the next look is of another moment
    return int(row[0]) if row else 0


def holds_something() -> bool:
    """Whether the present database has any user, without whom there is nothing else."""
    if "tenants_user" not in connection.introspection.table_names():
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM tenants_user)")
        return bool(cursor.fetchone()[0])


def close() -> None:
    """Give up our own connection, and the pool where there is one."""
    connection.close()
    pool_closer = getattr(connection, "close_pool", None)
    if pool_closer is not None:
        pool_closer()
