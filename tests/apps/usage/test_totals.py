"""Sums by hour and day: each record once, equal to the raw rows whatever one sums by, kept when those are
let go (GW-12)."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core import ticks
from apps.tenants.models import Role
from apps.tenants.scope import SYSTEM, viewer_of
from apps.usage import totals
from apps.usage.models import Span, UsageRecord, UsageTotal
from apps.usage.sums import By, Only, add, each_day, use_by
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("GW-12")]

FIRST, LAST = date(2026, 3, 1), date(2026, 3, 3)
START = datetime(2026, 3, 1, tzinfo=UTC)
TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def make(number: int, **fields: object) -> UsageRecord:
    values = {
        "request_id": f"r-{number}",
        "started_at": START,
        "path": "/v1/completions",
        "ending": "completed",
        "http_status": 200,
        "tenant_id": "ten-a",
        "tenant_slug": "a",
        "member": "mia",
        "key_id": "key-a",
        "key_prefix": "sk-a",
        "model": "m",
        "group_id": "tg-a",
        **fields,
    }
    return UsageRecord(**values)


records = st.lists(
    st.fixed_dictionaries(
        {
            # Seconds at both sides of the days' and hours' bounds are what matters.
            "started_at": st.integers(0, 72 * 4 - 1).map(
                lambda n: START + timedelta(hours=n // 4, seconds=(0, 1, 1800, 3599)[n % 4])
            ),
            "ending": st.sampled_from(["completed", "client_gone", "refused", "no_backend"]),
            "estimated": st.booleans(),
            "tenant_slug": st.sampled_from(["a", "b"]),
            "member": st.sampled_from(["mia", "tom"]),
            "key_id": st.sampled_from(["key-a", "key-b"]),
            "key_prefix": st.sampled_from(["sk-a", "sk-b"]),
            "model": st.sampled_from(["", "m", "n"]),
            "group_id": st.sampled_from(["", "tg-a"]),
            "prompt_tokens": st.integers(0, 2_000_000_000),
            "completion_tokens": st.integers(0, 2_000_000_000),
            "cached_tokens": st.integers(0, 5),
            "duration_ms": st.integers(0, 1000),
        }
    ),
    max_size=30,
)


def of_raw(rows: list[UsageRecord], by: By) -> dict[tuple[str, ...], list[int]]:
    names = {
        By.DAY: lambda r: (r.started_at.replace(hour=0, minute=0, second=0).isoformat(),),
        By.HOUR: lambda r: (r.started_at.replace(minute=0, second=0).isoformat(),),
        By.TENANT: lambda r: (r.tenant_slug,),
        By.MEMBER: lambda r: (r.member,),
        By.KEY: lambda r: (r.key_id, r.key_prefix),
        By.MODEL: lambda r: (r.model,),
        By.SERVICE: lambda r: (r.group_id,),
    }
    found: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * 6)
    for row in rows:
        more = [1, row.ending != "completed", row.estimated, *(getattr(row, name) for name in TOKENS)]
        found[names[by](row)] = [a + b for a, b in zip(found[names[by](row)], more, strict=True)]
    return dict(found)


def summed(by: By, only: Only = Only()) -> dict[tuple[str, ...], list[int]]:
    names = ("requests", "failed", "estimated", *TOKENS)
    return {use.value: [getattr(use, n) for n in names] for use in use_by(SYSTEM, FIRST, LAST, by, only)}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(records, min_size=1, max_size=3), portion=st.integers(1, 40))
def test_by_day_by_key_by_member_by_model_and_raw_are_one_sum(
    batches: list[list[dict[str, object]]], portion: int
) -> None:
    """At every moment: nothing added up yet, a part of it, all of it, and with the raw rows let go."""
    UsageRecord.objects.all().delete()
    UsageTotal.objects.all().delete()
    rows: list[UsageRecord] = []
    for batch in batches:
        made = [make(len(rows) + number, **fields) for number, fields in enumerate(batch)]
        UsageRecord.objects.bulk_create(made)
        rows += made
        totals.add_up(portion)
        for by in By:
            assert summed(by) == of_raw(rows, by), by
    while totals.add_up(portion):
        pass
    forgotten = totals.forget_records(START + timedelta(days=9), keep_days=1, most=1000)
    assert (forgotten, UsageRecord.objects.count()) == (len(rows), 0)
    for by in By:
        assert summed(by) == of_raw(rows, by), by
    of_one = [row for row in rows if (row.tenant_slug, row.key_id, row.model) == ("a", "key-a", "m")]
    assert summed(By.DAY, Only("a", "", "key-a", "m")) == of_raw(of_one, By.DAY)
    lines = list(each_day(SYSTEM, FIRST, LAST))
    assert add(use for _, use in lines).requests == len(rows)
    assert [day for day, _ in lines] == sorted(day for day, _ in lines)


@pytest.mark.django_db(transaction=True)
def test_a_run_that_broke_has_counted_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    UsageRecord.objects.bulk_create([make(number, prompt_tokens=1) for number in range(5)])
    store = totals._store

    def fail(sums: Any) -> None:
        store(sums)
        raise RuntimeError("between the sums and the marks")

    with monkeypatch.context() as broken:
        broken.setattr(totals, "_store", fail)
        assert ticks.run_tick("usage.totals") is None
    assert not UsageTotal.objects.exists()
    assert [ticks.run_tick("usage.totals", START) for _ in range(2)] == [{"records": 5}, {"records": 0}]
    assert {(t.span, t.requests, t.prompt_tokens) for t in UsageTotal.objects.all()} == {
        ("hour", 5, 5),
        ("day", 5, 5),
    }


@pytest.mark.django_db(transaction=True)
def test_a_run_takes_its_share_and_leaves_the_rest(settings: Any) -> None:
    settings.USAGE_TOTALS_RECORDS = 3
    UsageRecord.objects.bulk_create([make(number) for number in range(5)])
    assert [ticks.run_tick("usage.totals", START)["records"] for _ in range(3)] == [3, 2, 0]


@pytest.mark.django_db(transaction=True)
def test_what_is_let_go_is_old_and_counted(settings: Any) -> None:
    settings.USAGE_RECORDS_KEEP_DAYS, settings.USAGE_HOURS_KEEP_DAYS = 10, 20
    now = START + timedelta(days=30)
    ages = (9, 11, 19, 21)
    UsageRecord.objects.bulk_create([make(days, started_at=now - timedelta(days=days)) for days in ages])
    ticks.run_tick("usage.totals", now)
    assert list(UsageRecord.objects.values_list("request_id", flat=True)) == ["r-9"]
    began = UsageTotal.objects.filter(span=Span.HOUR).values_list("began_at", flat=True)
    assert set(began) == {now - timedelta(days=days) for days in ages if days < 20}
    assert sum(UsageTotal.objects.filter(span=Span.DAY).values_list("requests", flat=True)) == 4


def test_nothing_is_let_go_before_it_is_counted() -> None:
    UsageRecord.objects.bulk_create([make(number) for number in range(3)])
    totals.add_up(2)
    assert totals.forget_records(START + timedelta(days=99), keep_days=1) == 2
    assert list(UsageRecord.objects.values_list("request_id", flat=True)) == ["r-2"]


@pytest.mark.django_db(transaction=True)
def test_for_ever_is_a_choice(settings: Any) -> None:
    settings.USAGE_RECORDS_KEEP_DAYS = settings.USAGE_HOURS_KEEP_DAYS = 0
    UsageRecord.objects.bulk_create([make(1)])
    ticks.run_tick("usage.totals", START + timedelta(days=4000))
    assert (UsageRecord.objects.count(), UsageTotal.objects.count()) == (1, 2)


@pytest.mark.req("TEN-04")
def test_who_sees_which_sums(db: None) -> None:
    ours, theirs = factories.make_tenant(), factories.make_tenant()
    people = {role: factories.make_member(ours, role) for role in Role}
    for number, (tenant, name) in enumerate(
        [(ours, people[Role.MEMBER].username), (ours, "somebody"), (theirs, people[Role.MEMBER].username)]
    ):
        fields = {"tenant_id": tenant.public_id, "tenant_slug": tenant.slug, "member": name}
        UsageRecord.objects.bulk_create([make(number, **fields)])
    for added in (0, 3):
        assert totals.add_up(added) == added
        for role, seen in ((Role.OWNER, 2), (Role.ADMIN, 2), (Role.VIEWER, 2), (Role.MEMBER, 1)):
            found = use_by(viewer_of(people[role]), FIRST, LAST, By.TENANT)
            assert [(use.value, use.requests) for use in found] == [((ours.slug,), seen)]
            stolen = Only(tenant=theirs.slug)
            assert use_by(viewer_of(people[role]), FIRST, LAST, By.DAY, stolen) == []
        assert add(use_by(SYSTEM, FIRST, LAST, By.TENANT)).requests == 3
