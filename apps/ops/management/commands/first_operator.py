"""`manage.py first-operator`: the first person of a new installation, whose password is printed once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.ops.first_start import ensure_operator


class Command(BaseCommand):
    help = "Makes the operator `admin` and prints the password once; changes nothing where there is one."

    def handle(self, *args: Any, **options: Any) -> None:
        user, password = ensure_operator()
        if password is None:
            raise CommandError(
                f"The operator {user.username} is there already, and the password is not stored; "
                f"make a new one by: password {user.username}"
            )
        self.stdout.write(f"operator {user.username}   password {password}   (shown this once)")
