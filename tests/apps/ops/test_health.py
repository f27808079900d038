"""Alive and ready (OPS-04)."""

from collections.abc import Iterator

import pytest
from django.db import DatabaseError
from django.test import Client

from apps.ops import health


@pytest.fixture
def gateway_answer() -> Iterator[dict[str, bool]]:
    answer = {"ready": True}
    before = dict(health._questions)
    health.watch("gateway", lambda: answer["ready"])
    yield answer
    health._questions.clear()
    health._questions.update(before)


def test_alive_without_a_database(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}


@pytest.mark.django_db
def test_ready_names_each_part(client: Client, gateway_answer: dict[str, bool]) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]) == (200, {"database": True, "gateway": True})
    gateway_answer["ready"] = False
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["gateway"]) == (503, False)


@pytest.mark.django_db
def test_database_away_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(health.connection, "cursor", away)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["database"]) == (503, False)
    assert "away" not in answer.content.decode().replace("not ready", "")
