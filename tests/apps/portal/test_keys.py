"""Keys in the portal: limits when one is made and later, and how long a rotated one lives on (TEN-06)."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.clock import utc_now
from apps.core.secrets import sha256_hex
from apps.tenants.models import ApiKey, Role, Tenant, User
from tests import factories
from tests.apps.portal.conftest import browser

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-06")]
KEYS = reverse("portal:keys")


def test_a_key_is_made_with_its_limits(page: Client, tenant: Tenant) -> None:
    later = (utc_now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")
    page.post(
        KEYS,
        {
            "name": "ci",
            "allowed_addresses": "10.0.0.0/8, 192.0.2.7",
            "scopes": ["inference", "pin"],
            "expires_at": later,
        },
    )
    key = ApiKey.objects.get(name="ci")
    assert key.allowed_addresses == ["10.0.0.0/8", "192.0.2.7/32"]
    assert key.scopes == ["inference", "pin"]
    assert key.expires_at is not None and key.expires_at.strftime("%Y-%m-%dT%H:%M") == later
    text = page.get(KEYS).content.decode()
    assert "10.0.0.0/8, 192.0.2.7/32" in text and '<span class="tag">pin</span>' in text


def test_a_wrong_address_is_said_beside_its_field(page: Client, tenant: Tenant) -> None:
    answer = page.post(KEYS, {"name": "ci", "allowed_addresses": "10.0.0.5/8"})
    assert "without host bits" in answer.context["form"].errors["allowed_addresses"][0]
    assert not ApiKey.objects.exists()


def test_what_was_changed_is_changed_and_no_more(page: Client, tenant: Tenant, member: User) -> None:
    expired = utc_now() - timedelta(days=1)
    key, _ = factories.make_key(tenant, member, name="old", allowed_models=[], expires_at=expired)
    address = reverse("portal:key", args=[key.public_id])
    form = page.get(address).context["form"]
    shown = re.search(r'name="expires_at" value="([^"]+)"', str(form["expires_at"]))
    assert shown is not None
    sent = {"name": "new", "allowed_models": "", "expires_at": shown[1], "scopes": key.scopes}
    answer = page.post(address, {**sent, "allowed_addresses": "2001:db8::/32"})
    assert answer.status_code == 302
    changed = ApiKey.objects.get(pk=key.pk)
    assert (changed.name, changed.allowed_addresses) == ("new", ["2001:db8::/32"])
    assert (changed.allowed_models, changed.expires_at) == ([], expired)
    refused = page.post(address, {**sent, "expires_at": "2020-01-01T00:00"})
    assert "must lie in the future" in refused.context["form"].errors["expires_at"][0]


@pytest.mark.req("TEN-02", "TEN-04")
def test_who_may_open_and_change_a_key(tenant: Tenant, member: User) -> None:
    key, _ = factories.make_key(tenant, member)
    address = reverse("portal:key", args=[key.public_id])
    for role, found, changed in ((Role.VIEWER, 200, 403), (Role.MEMBER, 404, 404), (Role.ADMIN, 200, 302)):
        client = browser(factories.make_member(tenant, role))
        assert client.get(address).status_code == found
        assert client.post(address, {"name": role}).status_code == changed


def test_the_old_key_works_on_for_the_chosen_time(page: Client, tenant: Tenant, member: User) -> None:
    key, old = factories.make_key(tenant, member)
    text = page.get(KEYS).content.decode()
    assert '<option value="3600">' in text
    rotate = reverse("portal:key_rotate", args=[key.public_id])
    page.post(rotate, {"overlap_seconds": "3600"})
    key.refresh_from_db()
    assert key.former_sha256 == sha256_hex(old)
    assert f"the old one, {old[:11]}" in page.get(KEYS).content.decode()
    page.post(rotate, {"overlap_seconds": "3601"})  # no choice of the page: at once
    key.refresh_from_db()
    assert key.former_sha256 is None
