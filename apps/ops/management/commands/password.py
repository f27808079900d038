"""`manage.py password USER`: gives a person a new generated password and prints it once."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.ops.first_start import new_password
from apps.tenants.models import User


class Command(BaseCommand):
    help = "Sets a new generated password for a user and prints it once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['username']}.")
        password = new_password()
        user.set_password(password)
        user.save(update_fields=["password"])
        self.stdout.write(f"user {user.username}   password {password}   (shown this once)")
