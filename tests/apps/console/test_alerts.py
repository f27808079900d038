"""What an operator does with alerts and webhooks in the console (OPS-09)."""

import pytest
from django.test import Client
from django.urls import reverse

from apps.alerts.models import Alert, Delivery, Webhook
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09")]
SECRET = "a-long-enough-secret"


def test_an_alert_is_acknowledged_on_its_page_and_in_the_list(operator_client: Client, operator) -> None:
    rows = [
        Alert.objects.create(
            code="loop_late", object_id=name, params={"loop": name, "period_s": 1}, opened_at=NOW, last_at=NOW
        )
        for name in ("a", "b")
    ]
    listed = operator_client.get(reverse("admin:alerts_alert_changelist")).content.decode()
    assert "The loop a is late" in listed
    page = operator_client.get(reverse("admin:alerts_alert_change", args=[rows[0].pk])).content.decode()
    assert f"/{rows[0].pk}/acknowledge" in page
    answer = operator_client.post(reverse("admin:alerts_alert_acknowledge", args=[rows[0].pk]))
    assert answer.status_code == 302
    data = {"action": "acknowledge_selected", "_selected_action": [row.pk for row in rows]}
    operator_client.post(reverse("admin:alerts_alert_changelist"), data)
    assert set(Alert.objects.values_list("acknowledged_by", flat=True)) == {operator.username}


def test_a_webhook_is_made_changed_tested_and_its_secret_never_shown(operator_client: Client) -> None:
    form = {"name": "pager", "url": "https://pager.example/path-token", "secret": SECRET, "active": "on"}
    operator_client.post(reverse("admin:alerts_webhook_add"), form)
    webhook = Webhook.objects.get()
    assert webhook.secret == SECRET
    change = reverse("admin:alerts_webhook_change", args=[webhook.pk])
    operator_client.post(change, {**form, "name": "renamed", "secret": ""})
    webhook.refresh_from_db()
    assert (webhook.name, webhook.secret) == ("renamed", SECRET)
    operator_client.post(reverse("admin:alerts_webhook_send_test", args=[webhook.pk]))
    row = Delivery.objects.get()
    listed = operator_client.get(reverse("admin:alerts_webhook_changelist")).content.decode()
    assert "pager.example" in listed and "path-token" not in listed
    for page in (change, reverse("admin:alerts_delivery_change", args=[row.pk])):
        assert SECRET not in operator_client.get(page).content.decode()
    keeps = "Empty keeps the present one"
    assert keeps in operator_client.get(change).content.decode()
    assert keeps not in operator_client.get(reverse("admin:alerts_webhook_add")).content.decode()
    operator_client.post(reverse("admin:alerts_webhook_delete", args=[webhook.pk]), {"post": "yes"})
    assert not Webhook.objects.exists()


def test_an_address_inside_is_refused_with_the_way_out(operator_client: Client) -> None:
    form = {"name": "pager", "url": "http://127.0.0.1:9/", "secret": SECRET, "active": "on"}
    answer = operator_client.post(reverse("admin:alerts_webhook_add"), form, follow=True)
    assert "WEBHOOK_ALLOW_PRIVATE" in answer.content.decode()
    assert not Webhook.objects.exists()
    filled = answer.context["adminform"].form
    assert list(filled.errors) == ["url"]
    assert (filled["name"].value(), filled["url"].value()) == ("pager", "http://127.0.0.1:9/")
    assert SECRET not in answer.content.decode()
