"""The catalog of models: everybody signed in reads it, operators add to it."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.catalog.models import CatalogModel
from apps.tenants.models import User

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-06")]
Clients = Callable[..., APIClient]
URL = "/api/v1/models"
GOOD = {"name": "Qwen2.5", "path": "/data/models/qwen", "image": "vllm/vllm-openai:v0.12.0"}


def test_operators_add_and_members_read(api_client: Clients, operator: User, member: User) -> None:
    made = api_client(operator).post(URL, GOOD)
    assert made.status_code == 201
    assert made.json()["id"].startswith("mdl-")
    assert api_client(member).get(URL).json()["items"] == [made.json()]
    assert api_client(member).post(URL, GOOD).status_code == 403
    assert api_client().get(URL).status_code == 401
    again = api_client(operator).post(URL, GOOD)
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    assert CatalogModel.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"name": "two words"}, "name", "bad_name"),
        ({"name": ""}, "name", "blank"),
        ({"path": None}, "path", "required"),
        ({"image": "vllm"}, "image", "bad_image"),
        ({"engine": "ollama"}, "engine", "not_a_choice"),
        ({"size_mb": 0}, "size_mb", "out_of_range"),
        ({"licence": "MIT"}, "licence", "unknown_field"),
    ],
)
def test_what_it_refuses(
    api_client: Clients, operator: User, changes: dict[str, Any], field: str, code: str
) -> None:
    answer = api_client(operator).post(URL, GOOD | changes)
    assert answer.status_code == 400
    assert [(e["field"], e["code"]) for e in answer.json()["errors"]] == [(field, code)]
