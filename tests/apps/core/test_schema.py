"""The API's description of itself is whole: whatever it can not tell is a warning in the server's log."""

import os

from django.core.management import call_command
from drf_spectacular.drainage import GENERATOR_STATS


def test_the_schema_is_valid_and_comes_without_warnings() -> None:
    GENERATOR_STATS.reset()
    call_command("spectacular", validate=True, fail_on_warn=True, file=os.devnull)
