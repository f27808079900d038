"""`manage.py password USER`: gives a person a new generated password and prints it once."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.clock import utc_now
from apps.ops.first_start import new_password
from apps.tenants import services
from apps.tenants.models import User
from apps.tenants.scope import SYSTEM


class Command(BaseCommand):
    help = "Sets a new generated password for a user and prints it once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['username']}.")
        password = new_password()
        services.set_password(actor=SYSTEM, user=user, password=password, check=False, now=utc_now())
        self.stdout.write(f"user {user.username}   password {password}   (shown this once)")
