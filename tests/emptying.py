"""Empties the database after a test with transactions of its own. Owns how; which tests those are says their
mark.

Django's way makes each table's files anew on PostgreSQL, and content types and permissions after each test:
sixty times as much work as what is here, where tables hold a handful of rows.
"""

from functools import cache

from django.db import connections
from django.test import TransactionTestCase

MADE_BY_MIGRATE = ("django_content_type", "auth_permission")


def empty(case: TransactionTestCase) -> None:
    """All rows but those that `migrate` made, in one transaction: the order does not matter then."""
    for name in case._databases_names(include_mirrors=False):
        connections[name].ops.execute_sql_flush([f'DELETE FROM "{table}"' for table in _tables(name)])


@cache
def _tables(name: str) -> list[str]:
    found = connections[name].introspection.django_table_names(only_existing=True, include_views=False)
    return [table for table in found if table not in MADE_BY_MIGRATE]


def install() -> None:
    TransactionTestCase._fixture_teardown = empty
