"""A member's client and the one request that most tests of this folder start from."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.response import Response
from rest_framework.test import APIClient

from apps.tenants.models import User
from tests.apps.inference.bodies import body

URL = "/api/v1/task-groups"


@pytest.fixture
def client_of_member(api_client: Callable[..., APIClient], member: User) -> APIClient:
    return api_client(member)


@pytest.fixture
def post(client_of_member: APIClient) -> Callable[..., Response]:
    """`post(**changes)`: the good request with changes by path, sent by the member."""

    def send(client: APIClient | None = None, **changes: Any) -> Response:
        return (client or client_of_member).post(URL, body(**changes))

    return send
