"""A member's client and the one request that most tests of this folder start from."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.response import Response
from rest_framework.test import APIClient

from apps.catalog.models import CatalogModel
from apps.tenants.models import User
from tests.apps.inference.bodies import body

URL = "/api/v1/task-groups"


@pytest.fixture
def client_of_member(api_client: Callable[..., APIClient], member: User) -> APIClient:
    return api_client(member)


@pytest.fixture
def known_model() -> CatalogModel:
    """The good request's model, so that its memory can be estimated (SVC-09)."""
    task = body()["task"]
    return CatalogModel.objects.create(
        name="known", path=task["model_path"], image=task["image"], size_mb=1000
    )


@pytest.fixture
def post(client_of_member: APIClient, known_model: CatalogModel) -> Callable[..., Response]:
    """`post(**changes)`: the good request with changes by path, sent by the member."""

    def send(client: APIClient | None = None, **changes: Any) -> Response:
        return (client or client_of_member).post(URL, body(**changes))

    return send
