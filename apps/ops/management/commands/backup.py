"""`manage.py backup FILE`: database, stored files and usage journals into one file, while all runs."""

from argparse import ArgumentParser
from importlib import metadata
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from apps.core.clock import utc_now
from apps.ops.backup import archive
from apps.ops.preflight import NotReady


def sources() -> archive.Sources:
    """What this server consists of, by its settings."""
    return archive.Sources(
        settings.DATABASES["default"], Path(settings.MEDIA_ROOT), Path(settings.HETEROFLOW_USAGE_DIR)
    )


def version() -> str:
    """Of HeteroFlow, "" where it runs from its source."""
    try:
        return metadata.version("heteroflow")
    except metadata.PackageNotFoundError:
        return ""


class Command(BaseCommand):
    help = "Writes a backup of database, stored files and usage journals; the server may go on working."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--replace", action="store_true", help="write over FILE where it exists")

    def handle(self, *args: Any, **options: Any) -> None:
        target: Path = options["file"].resolve()
        if target.exists() and not options["replace"]:
            raise CommandError(
                f"No backup was made: {target} exists. Name another file, or write over it with --replace."
            )
        try:
            size = archive.write(target, sources(), version=version(), now=utc_now())
        except (NotReady, OSError) as error:
            raise CommandError(f"No backup was made: {error}") from None
        self.stdout.write(
            f"{target}: {size / 1e6:.1f} MB. Keep the keys, too, in another place (SECRET_KEY and "
            "ENCRYPTION_KEYS, or secrets.json): they are not in it, and without them its secrets stay closed."
        )
