"""Django's `migrate`, which first refuses a database that has only some of the migrations that one of ours
replaces: Django would leave that one out without a word. Changes nothing itself."""

from typing import Any

from django.core.management import CommandError
from django.core.management.commands import migrate
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        for name, missing in half_replaced(options["database"]).items():
            raise CommandError(
                f"The database was made by a version before {name}, and of what that replaces it lacks "
                f"{', '.join(missing)}. Migrate it with a version that still has these, then with this one "
                "(docs/operating.md, Upgrade); or begin with an empty database."
            )
        super().handle(*args, **options)


def half_replaced(database: str) -> dict[str, list[str]]:
    """Of each migration that replaces others, some of which are applied: those that are not."""
    applied = set(MigrationRecorder(connections[database]).applied_migrations())
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    found = {}
    for key, migration in loader.disk_migrations.items():
        missing = set(migration.replaces) - applied
        if missing and key not in applied and len(missing) < len(migration.replaces):
            found[".".join(key)] = sorted(".".join(one) for one in missing)
    return found
