"""The console speaks Chinese to Chinese operators: rows, columns and the theme's own sentences."""

import re
from typing import Any

import pytest
from django.contrib import admin
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from django.utils.translation import override

from apps.console.columns import COLUMNS
from apps.console.words import APPS, ROWS, THEME
from apps.tenants.models import User
from tests import factories

CHINESE = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"GPU"}


@pytest.mark.req("UI-03")
def test_every_word_is_chinese() -> None:
    words = [*APPS.values(), *COLUMNS.values(), *THEME, *(word for pair in ROWS.values() for word in pair)]
    with override("zh-hans"):
        missing = [str(word) for word in words if not CHINESE.search(str(word))]
    assert set(missing) <= SAME_IN_BOTH


@pytest.mark.parametrize("label", sorted(ROWS))
def test_every_listed_column_has_a_word(label: str) -> None:
    owner: Any = next((a for model, a in admin.site._registry.items() if model._meta.label == label), None)
    if owner is None:  # shown inside another row's page only
        return
    fields = {field.name for field in owner.opts.get_fields()} & set(owner.list_display)
    if owner.model is not User:  # Django's own words are translated by Django
        assert fields - set(COLUMNS) == set()


def test_every_registered_model_of_ours_has_a_word() -> None:
    ours: list[type[Model]] = [
        model for model in admin.site._registry if model.__module__.startswith("apps.")
    ]
    assert {model._meta.label for model in ours} <= set(ROWS)


@pytest.mark.django_db
def test_a_list_and_a_page_in_chinese(operator_client: Client) -> None:
    group = factories.make_group(factories.make_tenant(), factories.make_user())
    for address in (
        reverse("admin:workloads_taskgroup_changelist"),
        reverse("admin:workloads_taskgroup_change", args=[group.pk]),
    ):
        with override("en"):  # gives the thread's language back after the request
            text = operator_client.get(address, headers={"Accept-Language": "zh-Hans"}).content.decode()
        assert "创建时间" in text
        assert "task group" not in text.lower()
