"""How the console tells moments, absent values and empty lists."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.console.admin.base import ago
from apps.fleet.models import Liveness
from apps.tenants.models import ApiKey
from apps.workloads.models import Event, TaskGroup
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("UI-01")]


def test_a_moment_is_told_as_how_long_ago_and_none_is_none() -> None:
    told = [ago(NOW - timedelta(seconds=s), NOW) for s in (-1, 0, 119, 120, 7199, 7200, 172799, 172800)]
    assert told == [
        *("0 s ago", "0 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago", "47 h ago", "2 days ago")
    ]
    assert ago(None, NOW) is None


def test_moments_of_events_have_seconds_and_rows_keep_their_names(
    full: dict[str, Any], operator_client: Client
) -> None:
    event = Event.objects.get()
    shown = operator_client.get(reverse("admin:workloads_event_changelist")).content.decode()
    assert event.at.strftime("%Y-%m-%d %H:%M:%S") in shown
    group = event.group
    TaskGroup.objects.filter(pk=group.pk).update(name="eBPF lower")
    page = operator_client.get(reverse("admin:workloads_taskgroup_change", args=[group.pk])).content.decode()
    assert event.at.strftime("%Y-%m-%d %H:%M:%S") in page
    assert "eBPF lower" in page
    assert "EBPF lower" not in page


def test_a_key_for_all_models_says_all(full: dict[str, Any], operator_client: Client) -> None:
    key = ApiKey.objects.first()
    assert key is not None
    address = reverse("admin:tenants_apikey_change", args=[key.pk])
    for allowed, shown in ((None, "all"), (["a", "b"], "a, b"), ([], "none")):
        ApiKey.objects.filter(pk=key.pk).update(allowed_models=allowed)
        page = operator_client.get(address).content.decode()
        assert re.search(rf">\s*{shown}\s*<", page), shown


def test_an_empty_list_speaks_of_making_one_only_where_that_is_done(operator_client: Client) -> None:
    claims = operator_client.get(reverse("admin:workloads_claim_changelist")).content.decode()
    assert "Nothing here yet" in claims
    assert "Create a new item" not in claims
    assert "Add claim" not in claims
    assert "Rows come here by themselves." in claims
    tokens = operator_client.get(reverse("admin:fleet_jointoken_changelist")).content.decode()
    assert "The button above makes one." in tokens
    models = operator_client.get(reverse("admin:catalog_catalogmodel_changelist")).content.decode()
    assert "Add model" in models
    found = operator_client.get(reverse("admin:workloads_claim_changelist"), {"q": "x"}).content.decode()
    assert "Nothing found" in found
    assert "Reset filters" in found


def test_a_clock_that_is_right_is_not_off_by_minus_nothing(operator_client: Client) -> None:
    node = factories.make_node()
    Liveness.objects.filter(node=node).update(clock_skew_s=-0.04)
    page = operator_client.get(reverse("admin:fleet_node_change", args=[node.pk])).content.decode()
    assert "0.0 s" in page and "-0.0 s" not in page
