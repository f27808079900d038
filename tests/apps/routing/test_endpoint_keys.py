"""An endpoint's key that is rotated with an overlap (SVC-16, TEN-06)."""

from collections.abc import Callable

import pytest
from rest_framework.test import APIClient

from apps.core.secrets import sha256_hex
from apps.routing.services import create_endpoint
from apps.tenants.models import ApiKey, Tenant, User
from apps.tenants.scope import viewer_of
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-16", "TEN-06")]


def test_the_old_key_works_on_where_that_is_asked_with_the_rotation(
    api_client: Callable[..., APIClient], tenant: Tenant, member: User
) -> None:
    group = factories.make_group(tenant, member)
    endpoint, old = create_endpoint(actor=viewer_of(member), group=group, name="e", port=8000, now=NOW)
    client, url = api_client(member), f"/api/v1/gateway/endpoints/{endpoint.public_id}"
    alone = client.put(url, {"overlap_seconds": 60})
    assert [(e["field"], e["code"]) for e in alone.json()["errors"]] == [("overlap_seconds", "not_offered")]
    endless = client.put(url, {"overlap_seconds": 10**9, "rotate_key": True})
    assert [(e["field"], e["code"]) for e in endless.json()["errors"]] == [
        ("overlap_seconds", "out_of_range")
    ]
    assert ApiKey.objects.get().sha256 == sha256_hex(old)
    answer = client.put(url, {"overlap_seconds": 60, "rotate_key": True}).json()
    key = ApiKey.objects.get()
    assert (key.sha256, key.former_sha256) == (sha256_hex(answer["api_key"]), sha256_hex(old))
