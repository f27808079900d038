"""Quotas: the row is locked by who counts, so that parallel requests can not overshoot."""

import threading

import pytest
from django.db import connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from apps.core.errors import Refusal
from apps.tenants import quotas
from apps.tenants.models import Quota, SharedGroup
from tests import factories

pytestmark = pytest.mark.req("TEN-07")


@given(limit=st.none() | st.integers(0, 1000), used=st.integers(0, 2000), asked=st.integers(0, 1000))
def test_what_passes_stays_within_the_limit(limit, used, asked):
    quota = Quota(gpus=limit)
    try:
        quotas.ensure(quota, "gpus", used=used, asked=asked)
        passed = True
    except Refusal as refusal:
        passed = False
        assert (refusal.code, refusal.status) == ("quota_exceeded", 403)
        assert refusal.params == {"what": "gpus", "limit": limit, "used": used, "asked": asked}
    assert passed is (limit is None or asked == 0 or used + asked <= limit)


def test_zero_is_a_limit_and_none_is_none():
    with pytest.raises(Refusal):
        quotas.ensure(Quota(replicas=0), "replicas", used=0, asked=1)
    quotas.ensure(Quota(replicas=None), "replicas", used=10**9, asked=1)


@pytest.mark.django_db(transaction=True)
def test_a_lock_outside_a_transaction_is_an_error():
    tenant = factories.make_tenant()
    with pytest.raises(transaction.TransactionManagementError):
        quotas.lock(tenant)


@pytest.mark.django_db
def test_a_tenant_without_a_row_gets_one():
    tenant = factories.make_tenant()
    Quota.objects.all().delete()
    assert quotas.lock(tenant).gpus is None


@pytest.mark.django_db(transaction=True)
def test_a_hundred_at_once_make_exactly_ten():
    tenant = factories.make_tenant(quota={"task_groups": 10})
    start, outcomes = threading.Barrier(20), []

    def create(number: int) -> None:
        try:
            with transaction.atomic():
                quota = quotas.lock(tenant)
                used = SharedGroup.objects.count()  # any row that is counted will do
                quotas.ensure(quota, "task_groups", used=used, asked=1)
                SharedGroup.objects.create(name=f"made-{number}")
            outcomes.append("made")
        except Refusal as refusal:
            outcomes.append(refusal.code)

    def run(first: int) -> None:
        try:
            start.wait(timeout=30)
            for number in range(first, first + 5):
                create(number)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n * 5,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert sorted(outcomes) == ["made"] * 10 + ["quota_exceeded"] * 90
    assert SharedGroup.objects.count() == 10
