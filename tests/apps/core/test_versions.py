"""A published version never loses a bump."""

import pytest
from django.db import transaction

from apps.core import versions
from tests.apps.core.threads import run_at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_begins_at_nought_and_rises():
    assert versions.read() == 0
    versions.bump()
    versions.bump()
    assert versions.read() == 2
    assert versions.read("another") == 0


def test_parallel_bumps_are_all_counted():
    def bump_five(number: int) -> None:
        for _ in range(5):
            with transaction.atomic():
                versions.bump()

    run_at_once(6, bump_five)

    assert versions.read() == 30


def test_a_bump_of_a_failed_transaction_is_undone():
    versions.bump()
    with pytest.raises(RuntimeError), transaction.atomic():
        versions.bump()
        raise RuntimeError

    assert versions.read() == 1
