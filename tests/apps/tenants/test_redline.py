"""The red line: isolation unless declared, and every unanswered question is a no."""

import pytest
from django.db import OperationalError, connection, transaction

from apps.tenants import redline
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-03")]


def test_only_the_same_tenant_or_a_shared_group_shares():
    a, b, c, d = (factories.make_tenant() for _ in range(4))
    factories.make_shared_group(a, b)
    factories.make_shared_group(b, c)

    assert redline.may_share(a, a) and redline.may_share(a.pk, a)
    assert redline.may_share(a, b) and redline.may_share(b.pk, a.pk)
    assert not redline.may_share(a, c)  # sharing is not passed on
    assert not redline.may_share(a, d)
    assert redline.sharing() == {
        a.pk: frozenset({b.pk}),
        b.pk: frozenset({a.pk, c.pk}),
        c.pk: frozenset({b.pk}),
    }


@pytest.mark.parametrize("error", [OperationalError("away"), RuntimeError("odd")])
def test_a_question_that_fails_is_a_no(error, caplog):
    a, b = factories.make_tenant(), factories.make_tenant()
    factories.make_shared_group(a, b)
    assert redline.may_share(a, b)

    def fail(execute, sql, params, many, context):
        if "sharedgroup" in sql:
            raise error
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        assert redline.may_share(a, b) is False
        assert redline.sharing() == {}
        assert redline.may_share(a, a) is True
    assert "counts as no" in caplog.text


def test_a_failing_question_does_not_spoil_the_callers_transaction():
    a, b = factories.make_tenant(), factories.make_tenant()

    def fail(execute, sql, params, many, context):
        if "sharedgroup" in sql:
            return execute("SELECT no_such_column", (), many, context)
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(fail):
            assert not redline.may_share(a, b)
        made = factories.make_tenant()
    made.refresh_from_db()


@pytest.mark.parametrize("odd", [None, "1", object()])
def test_nonsense_shares_with_nothing(odd):
    assert redline.may_share(odd, odd) is False
