"""Readiness by part, and leadership apart from it (OPS-04)."""

from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.test import Client

from apps.core import ticks
from apps.core.clock import utc_now
from apps.core.models import TickRun
from apps.ops import health

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-04")]


@pytest.fixture
def database_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(health.connection, "cursor", away)


def test_the_gateway_alone_is_ready_without_a_database(
    client: Client, database_away: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_questions", {"gateway": lambda: True})
    assert client.get("/readyz/gateway").status_code == 200
    assert client.get("/readyz/database").status_code == 503
    assert client.get("/readyz").status_code == 503


def test_a_part_that_this_process_lacks_is_no_part(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_questions", {})
    assert client.get("/readyz/gateway").status_code == 404


def test_loops_are_late_or_running_and_never_unready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(health, "BEGAN", utc_now())
    first = client.get("/readyz/loops").json()
    assert first["status"] == "running"  # just started, and nothing ran yet
    assert set(first["last_run_s"].values()) == {None}
    monkeypatch.setattr(health, "BEGAN", utc_now() - timedelta(days=1))
    assert client.get("/readyz/loops").json()["late"] == list(ticks.REGISTRY)
    for name in ticks.REGISTRY:
        TickRun.objects.create(name=name, finished_at=utc_now())
    assert client.get("/readyz/loops").json()["status"] == "running"
    TickRun.objects.filter(name="scheduling.place").update(finished_at=utc_now() - timedelta(hours=1))
    answer = client.get("/readyz/loops")
    assert (answer.status_code, answer.json()["late"]) == (503, ["scheduling.place"])
    assert client.get("/readyz").status_code == 200
