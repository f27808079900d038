"""`manage.py join-line`: what the console's join page shows, for scripts that set up nodes."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.clock import utc_now
from apps.core.errors import Invalid
from apps.fleet.services import create_join_token, join_command
from apps.tenants.models import User
from apps.tenants.scope import viewer_of


class Command(BaseCommand):
    help = "Makes a token that lets one machine join, once, and prints the line for that machine."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--by", default="admin", help="the operator who answers for it (audit trail)")
        parser.add_argument("--ttl-s", type=float, help="seconds until it is void; default JOIN_TOKEN_TTL_S")
        parser.add_argument("--token", action="store_true", help="print the token alone, for join_token_file")

    def handle(self, *args: Any, **options: Any) -> None:
        operator = User.objects.filter(username=options["by"], is_superuser=True, is_active=True).first()
        if operator is None:
            raise CommandError(f"There is no operator {options['by']}; name one who is: --by NAME")
        try:
            _token, plain = create_join_token(
                actor=viewer_of(operator), ttl_s=options["ttl_s"], now=utc_now()
            )
        except Invalid as refusal:
            wrong = refusal.errors[0]
            raise CommandError(
                f"--ttl-s {wrong.value} must be from {wrong.params['min']} to {wrong.params['max']} seconds."
            ) from None
        self.stdout.write(plain if options["token"] else join_command(plain))
