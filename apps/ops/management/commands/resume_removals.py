"""`manage.py resume-removals`: after a restore, lets agents remove what the rows do not want."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core import holds
from apps.ops.backup import archive
from apps.ops.management.commands.backup import sources


class Command(BaseCommand):
    help = "After a restore: lets agents end containers again that no service wants."

    def handle(self, *args: Any, **options: Any) -> None:
        if holds.is_held(holds.REMOVALS) and archive.is_unfinished(sources()):
            raise CommandError(
                "The restore did not come to its end, so stored files may be missing; run it again: "
                "manage.py restore FILE --replace"
            )
        waited = holds.release(holds.REMOVALS)
        self.stdout.write("Removals go on." if waited else "Removals were not waiting.")
