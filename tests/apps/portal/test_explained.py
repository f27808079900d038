"""The service's page and the console's page of a group say what comes next and what to do (SVC-14)."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from apps.tenants.models import Tenant, User
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-14")]


@pytest.fixture
def waiting(tenant: Tenant, member: User):
    other = factories.make_tenant()
    factories.make_node("rack-1", last_seen_at=factories.NOW - timedelta(days=400))
    factories.make_node("rack-<2>", vram_total_mb=4000, last_seen_at=factories.NOW + timedelta(days=4000))
    factories.make_node("not-yours", allowed_tenants=[other])
    group = factories.make_group(tenant, member)
    factories.make_task(group, estimated_gpu_memory_mb=20000)
    return group


def test_the_services_page_tells_each_nodes_word(page: Client, waiting) -> None:
    text = page.get(reverse("portal:service", args=[waiting.public_id])).content.decode()
    assert "What comes next" in text and "It waits for a node with room" in text
    assert "It is offline." in text and "19.5 GB are needed on a card" in text
    assert "Lower gpu_memory_utilization" in text
    assert "rack-&lt;2&gt;" in text and "rack-<2>" not in text and "not-yours" not in text


def test_the_consoles_page_tells_it_of_every_node(operator: User, waiting) -> None:
    client = Client()
    client.force_login(operator)
    text = client.get(reverse("admin:workloads_taskgroup_change", args=[waiting.pk])).content.decode()
    assert "19.5 GB are needed on a card" in text and "not-yours" in text
    assert "It is not open to this tenant." in text and "rack-<2>" not in text
