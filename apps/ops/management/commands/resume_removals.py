"""`manage.py resume-removals`: after a restore, lets agents remove what the rows do not want."""

from typing import Any

from django.core.management.base import BaseCommand

from apps.core import holds


class Command(BaseCommand):
    help = "After a restore: lets agents end containers again that no service wants."

    def handle(self, *args: Any, **options: Any) -> None:
        waited = holds.release(holds.REMOVALS)
        self.stdout.write("Removals go on." if waited else "Removals were not waiting.")
