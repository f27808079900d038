"""Many people create at once: the quota holds exactly, and a name goes to one of them."""

import threading
from collections import Counter

import pytest
from django.db import connection

from apps.core.errors import Refusal
from apps.inference.services import create_service
from apps.routing.models import InferenceEndpoint
from apps.tenants.models import ApiKey, Tenant, User
from apps.tenants.scope import viewer_of
from apps.workloads.models import Task, TaskGroup
from tests import factories
from tests.apps.inference.bodies import body


def create_at_once(user: User, names: list[str]) -> Counter[str]:
    """Each name in a thread of its own, all let go together; counts the outcomes by code."""
    outcomes: Counter[str] = Counter()
    gate, counting = threading.Barrier(len(names)), threading.Lock()

    def create(name: str) -> None:
        try:
            viewer = viewer_of(user)
            gate.wait(timeout=60)
            create_service(actor=viewer, body=body(name=name), now=factories.NOW)
            outcome = "created"
        except Refusal as refusal:
            outcome = f"{refusal.status} {refusal.code}"
        except Exception as error:
            outcome = repr(error)
        finally:
            connection.close()
        with counting:
            outcomes[outcome] += 1

    threads = [threading.Thread(target=create, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    return outcomes


@pytest.fixture
def limited() -> Tenant:
    return factories.make_tenant(quota={"task_groups": 10})


@pytest.mark.req("TEN-07")
@pytest.mark.django_db(transaction=True)
def test_a_hundred_creations_at_a_quota_of_ten_make_exactly_ten(limited: Tenant) -> None:
    user = factories.make_member(limited)
    outcomes = create_at_once(user, [f"service-{number}" for number in range(100)])
    assert outcomes == {"created": 10, "403 quota_exceeded": 90}
    assert TaskGroup.objects.count() == 10
    assert Task.objects.count() == 10
    assert InferenceEndpoint.objects.count() == 10
    assert ApiKey.objects.count() == 10


@pytest.mark.req("SVC-05")
@pytest.mark.django_db(transaction=True)
def test_one_name_asked_for_twenty_times_at_once_is_given_once() -> None:
    user = factories.make_member(factories.make_tenant())
    outcomes = create_at_once(user, ["the-one"] * 20)
    assert outcomes == {"created": 1, "409 name_taken": 19}
    assert TaskGroup.objects.count() == 1
