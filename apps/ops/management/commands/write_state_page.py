"""`manage.py write_state_page`: writes docs/states.md from the table in code."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from apps.ops.state_page import build_page


class Command(BaseCommand):
    help = "Writes docs/states.md from the table of moves."

    def handle(self, *args: Any, **options: Any) -> None:
        (Path(settings.BASE_DIR) / "docs" / "states.md").write_text(build_page())
