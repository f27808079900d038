"""Usage over the API: sums, and rows to take away as CSV and JSON, few held at a time, one's own (GW-12)."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from apps.tenants.models import Role, Tenant, User
from apps.tenants.scope import SYSTEM
from apps.usage import exports, totals
from apps.usage.models import UsageRecord
from apps.usage.sums import Only
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("GW-12")]
Clients = Callable[..., APIClient]
START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = {"from": "2026-03-01", "to": "2026-03-03"}
URL = "/api/v1/usage"


def make(tenant: Tenant, member: User, number: int, **fields: Any) -> UsageRecord:
    values = {
        "request_id": f"{tenant.slug}-{number}",
        "started_at": START + timedelta(hours=number % 48),
        "path": "/v1/chat/completions",
        "ending": "completed",
        "http_status": 200,
        "tenant_id": tenant.public_id,
        "tenant_slug": tenant.slug,
        "member": member.username,
        "key_id": "key-a",
        "key_prefix": "sk-a",
        "model": "m",
        "prompt_tokens": number,
        "completion_tokens": 1,
        **fields,
    }
    return UsageRecord.objects.create(**values)


def read(answer: Any) -> Any:
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    text = b"".join(answer.streaming_content).decode()
    return json.loads(text) if "json" in answer["Content-Type"] else list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("counted", [0, 5, 9])
def test_every_way_tells_the_same(
    api_client: Clients, tenant: Tenant, member: User, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "CHUNK", 4)
    for number in range(9):
        make(tenant, member, number, started_at=START, estimated=number == 1, ttft_ms=None)
    make(tenant, member, 99, started_at=START - timedelta(seconds=1))
    make(tenant, member, 100, started_at=START + timedelta(days=3))
    totals.add_up(counted)
    client = api_client(member)
    rows = read(client.get(f"{URL}/records.csv", DAYS))
    assert [row["request_id"] for row in rows] == [f"{tenant.slug}-{n}" for n in range(9)]
    assert (rows[1]["estimated"], rows[1]["ttft_ms"]) == ("True", "")
    objects = read(client.get(f"{URL}/records.json", DAYS))
    assert [one["prompt_tokens"] for one in objects] == list(range(9))
    assert objects[1]["ttft_ms"] is None and objects[1]["estimated"] is True
    (day,) = read(client.get(f"{URL}/days.csv", DAYS))
    assert (day["day"], day["requests"], day["prompt_tokens"]) == ("2026-03-01", "9", "36")
    (same,) = read(client.get(f"{URL}/days.json", DAYS))
    assert (same["requests"], same["estimated"], same["completion_tokens"]) == (9, 1, 9)
    for by, value in (
        ("day", "2026-03-01T00:00:00+00:00"),
        ("key", "key-a"),
        ("model", "m"),
        ("tenant", tenant.slug),
    ):
        (item,) = client.get(URL, DAYS | {"by": by}).json()["items"]
        assert (item["value"], item["requests"], item["prompt_tokens"]) == (value, 9, 36)
        assert item["key_prefix"] == ("sk-a" if by == "key" else "")


def test_nothing_is_an_empty_table_and_an_empty_array(api_client: Clients, member: User) -> None:
    client = api_client(member)
    assert read(client.get(f"{URL}/records.csv", DAYS)) == []
    assert read(client.get(f"{URL}/records.json", DAYS)) == []
    assert client.get(URL, DAYS).json()["items"] == []


def test_a_name_is_no_formula(api_client: Clients, tenant: Tenant, member: User) -> None:
    for number, model in enumerate(
        ['=cmd|"/c calc"!A1', "+1", "-1", "@x", "\tx", "\n=1", "\uff1d1", 'a"b,c\nd']
    ):
        make(tenant, member, number, model=model)
    for path in ("records.csv", "days.csv"):
        for row in read(api_client(member).get(f"{URL}/{path}", DAYS)):
            assert row["model"][0] in "'a"
    names = [row["model"] for row in read(api_client(member).get(f"{URL}/records.json", DAYS))]
    assert names[0] == '=cmd|"/c calc"!A1'


def test_many_rows_are_read_in_portions_and_no_more_are_held() -> None:
    values = {"started_at": START, "path": "/v1/x", "ending": "completed", "http_status": 200}
    made = [UsageRecord(request_id=f"r-{number}", **values) for number in range(exports.CHUNK * 2 + 1)]
    UsageRecord.objects.bulk_create(made)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        rows = exports.record_rows(SYSTEM, START.date(), START.date(), Only())
        next(rows)
        assert len(asked) == 1
        assert len({row[0] for row in rows}) == len(made) - 1
    assert len(asked) == 4


@pytest.mark.req("TEN-04")
@pytest.mark.parametrize("path", ["", "/records.csv", "/records.json", "/days.csv", "/days.json"])
def test_ones_own_alone(api_client: Clients, tenant: Tenant, member: User, path: str) -> None:
    make(tenant, member, 1, model="mine")
    make(tenant, factories.make_member(tenant), 2, model="colleagues")
    other = factories.make_tenant()
    make(other, member, 3, model="strangers")

    def names(user: User, **asked: str) -> set[str]:
        answer = api_client(user).get(URL + path, DAYS | asked)
        if not path:
            return {item["value"] for item in answer.json()["items"]}
        return {row["model"] for row in read(answer)}

    assert names(member) == {"mine"}
    assert names(factories.make_member(tenant, Role.VIEWER)) == {"mine", "colleagues"}
    assert names(member, tenant=other.slug) == set()
    assert names(factories.make_operator()) == {"mine", "colleagues", "strangers"}
    assert names(factories.make_operator(), tenant=other.slug) == {"strangers"}
    assert names(factories.make_operator(), model="mine", member=member.username, key="key-a") == {"mine"}
    assert api_client().get(URL + path, DAYS).status_code == 401


@pytest.mark.parametrize(
    ("asked", "field", "rule"),
    [
        ({"from": "2026-03-02", "to": "2026-03-01"}, "from", "to 2026-03-01"),
        ({"from": "2024-01-01", "to": "2026-03-01"}, "from", "from 2025-03-01"),
        ({"from": "yesterday"}, "from", "a day, such as"),
        ({"by": "colour"}, "by", "by is colour; it must be one of: "),
        ({"by": "hour", "from": "2026-03-01", "to": "2026-03-20"}, "from", "from 2026-03-13"),
    ],
)
def test_what_can_not_be_asked_is_named(
    api_client: Clients, member: User, asked: dict[str, str], field: str, rule: str
) -> None:
    answer = api_client(member).get(URL, asked)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"] == field and rule in error["detail"]


def test_by_hour_without_a_first_day_is_the_longest_there_is(
    api_client: Clients, tenant: Tenant, member: User
) -> None:
    make(tenant, member, 1)
    asked = {"by": "hour", "to": "2026-03-08"}
    (line,) = api_client(member).get(URL, asked).json()["items"]
    assert line["value"].startswith("2026-03-01T01")


@pytest.mark.parametrize("days", [{"to": "9999-12-31"}, {"from": "0001-01-01", "to": "0001-01-02"}])
@pytest.mark.parametrize("what", ["", "/records.csv", "/days.json", "/card-time", "/card-time.csv"])
def test_the_first_and_the_last_days_of_all_are_days(
    api_client: Clients, member: User, what: str, days: dict[str, str]
) -> None:
    answer = api_client(member).get(URL + what, days)
    assert answer.status_code == 200
    if answer.streaming:
        read(answer)
