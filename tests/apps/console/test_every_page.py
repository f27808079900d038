"""Every page of the console renders with rows for an operator, and for nobody else."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.test import Client, RequestFactory
from django.urls import reverse

from apps.tenants.models import ApiKey, User
from tests import factories

PAGES = list(admin.site._registry.items())
IDS = [model._meta.label_lower for model, _ in PAGES]


def address(model: Any, what: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=args)


@pytest.mark.req("TEN-06")
@pytest.mark.parametrize(("model", "page"), PAGES, ids=IDS)
def test_every_page_renders_with_rows_and_shows_no_secret(
    full: dict[str, Any], operator_client: Client, operator: User, model: Any, page: ModelAdmin
) -> None:
    """No key, no hash of one, no value of an environment."""
    row = model.objects.first()
    assert row is not None, f"no {model.__name__} in the fixture: a page without rows proves little"
    for path in (address(model, "changelist"), address(model, "change", row.pk)):
        shown = operator_client.get(path)
        assert shown.status_code == 200
        hashes = ApiKey.objects.values_list("sha256", "former_sha256").get(pk=full["key"].pk)
        for secret in (full["plain"], *hashes, "very-secret-value"):
            assert secret not in shown.content.decode()
    assert operator_client.get(address(model, "changelist"), {"q": "a"}).status_code == 200
    added = operator_client.get(address(model, "add"))
    assert added.status_code == (200 if page.has_add_permission(asked_by(operator)) else 403)


def asked_by(person: User, path: str = "/") -> Any:
    request = RequestFactory().get(path)
    request.user = person
    return request


@pytest.mark.parametrize(("model", "page"), PAGES, ids=IDS)
def test_filters_take_every_choice(
    full: dict[str, Any], operator: User, model: Any, page: ModelAdmin
) -> None:
    """The rows are found; how a page shows them is the same with every filter."""
    path = address(model, "changelist")
    whole = page.get_changelist_instance(asked_by(operator, path))
    for spec in whole.filter_specs:
        for choice in spec.choices(whole):
            query = choice.get("query_string") if isinstance(choice, dict) else None
            if query:
                found = page.get_changelist_instance(asked_by(operator, path + query))
                assert len(list(found.result_list)) <= len(list(whole.result_list))


@pytest.mark.parametrize("year", ["99999999999", "0", "-1", "x", "9" * 5000])
@pytest.mark.parametrize("model", [model for model, page in PAGES if page.date_hierarchy])
def test_a_date_that_is_none_leads_back_to_the_list(
    full: dict[str, Any], operator_client: Client, model: Any, year: str
) -> None:
    when = admin.site._registry[model].date_hierarchy
    answer = operator_client.get(address(model, "changelist"), {f"{when}__year": year}, follow=True)
    assert answer.status_code == 200


def test_every_model_of_ours_is_registered() -> None:
    from django.apps import apps

    ours = {m for app in apps.get_app_configs() if app.name.startswith("apps.") for m in app.get_models()}
    inline = {
        "CardSample",
        "ModelFile",
        "NodeSample",
        "Liveness",
        "CardClaim",
        "FilePiece",
    }  # shown on their node's, card's, claim's, file request's page
    missing = {m.__name__ for m in ours - set(admin.site._registry)} - inline
    assert not missing


@pytest.mark.parametrize("model", [model for model, _ in PAGES], ids=IDS)
def test_nobody_but_operators_sees_a_page(full: dict[str, Any], model: Any) -> None:
    row = model.objects.first()
    paths = [address(model, "changelist"), address(model, "add"), address(model, "change", row.pk)]
    member = Client()
    member.force_login(full["member"])
    staff = Client()
    staff.force_login(factories.make_user(is_staff=True))
    for path in paths:
        assert Client().get(path).status_code == 302  # to the sign-in page
        assert member.get(path).status_code == 302
        assert staff.get(path).status_code == 403, path


def test_staff_without_operator_rights_sees_no_figures(full: dict[str, Any]) -> None:
    staff = Client()
    staff.force_login(factories.make_user(is_staff=True))
    page = staff.get(reverse("admin:index"))
    assert page.status_code == 200
    assert "overview" not in page.context


def test_state_rows_can_not_be_written(full: dict[str, Any], operator_client: Client) -> None:
    task = full["task"]
    answer = operator_client.post(
        reverse("admin:workloads_task_change", args=[task.pk]), {"state": "running", "name": "x"}
    )
    assert answer.status_code == 403
    task.refresh_from_db()
    assert task.state == "pending"


def test_task_page_says_reason_and_refusals_and_escapes(
    full: dict[str, Any], operator_client: Client
) -> None:
    page = operator_client.get(reverse("admin:workloads_task_change", args=[full["task"].pk]))
    text = page.content.decode()
    assert "none of 1 nodes can take it" in text
    assert "4 free card(s) needed, at most 2 free" in text
    assert "&lt;b&gt;boom&lt;/b&gt;" in text
    assert "<b>boom</b>" not in text
    assert f'data-task="{full["task"].public_id}"' in text
