"""Card time as rows: counted once however often, kept when what it names goes, seen by its people (GW-18)."""

import csv
import io
from datetime import date, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from agent.contract.codes import Code
from agent.contract.states import State, TaskType
from apps.core import leases, ticks
from apps.tenants.models import Role
from apps.tenants.scope import SYSTEM
from apps.upkeep.services import delete_node
from apps.usage import loop
from apps.usage.card_times import time_by_group, write_csv
from apps.usage.models import CardTime
from apps.workloads import services
from apps.workloads.models import Claim, Event, Loan, Task
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("GW-18")]
DAY = NOW.date()
URL = "/api/v1/usage/card-time"


def move(task, minute, to):
    Event.objects.create(
        group=task.group,
        task=task,
        attempt=task.attempt,
        to_state=to,
        code=Code.READY,
        actor="x",
        at=NOW + timedelta(minutes=minute),
    )


@pytest.fixture
def member():
    return factories.make_member(role=Role.MEMBER)


def up(member=None, *, percent=None, cards=1, **group_fields):
    """A task that has run since NOW."""
    owner = member or factories.make_member()
    tenant = owner.memberships.get().tenant
    task = factories.make_task(
        factories.make_group(tenant, owner, **group_fields),
        state=State.RUNNING,
        attempt=1,
        gpu_required=cards,
        node=factories.make_node(cards=cards),
    )
    factories.make_claim(task, task.node, incarnation="run-1", percent=percent)
    move(task, 0, State.SCHEDULING)
    move(task, 1, State.RUNNING)
    return task


def run(minute):
    return ticks.run_tick(loop.NAME, NOW + timedelta(minutes=minute))


def rows(task):
    return {
        (row.day, row.kind): row.card_ms / 60_000 for row in CardTime.objects.filter(task_id=task.public_id)
    }


def test_it_grows_while_the_claim_lives_and_stands_once_it_is_released():
    task = up(cards=2)
    assert run(10) == {"claims": 1, "rows": 1}
    assert rows(task) == {(DAY, "running"): 20}
    run(30)
    run(30)  # twice, as after a kill
    assert rows(task) == {(DAY, "running"): 60}

    move(task, 40, State.STOPPED)
    Claim.objects.update(released_at=NOW + timedelta(minutes=40))
    run(50)
    assert rows(task) == {(DAY, "running"): 80}
    assert run(60) == {"claims": 0, "rows": 0}


def test_it_goes_on_over_midnight():
    task = up()
    run(11 * 60 + 59)
    run(12 * 60 + 30)
    run(13 * 60)
    assert rows(task) == {(DAY, "running"): 720, (DAY + timedelta(days=1), "running"): 60}


def test_sleep_and_loans_are_apart_and_a_share_counts_as_a_share():
    task = up(percent=50)
    move(task, 10, State.SLEEPING)
    Loan.objects.create(
        card=task.claims.get().cards.get(),
        borrower=factories.make_claim(factories.make_task(gpu_required=0), task.node),
        since=NOW + timedelta(minutes=20),
        until=NOW + timedelta(minutes=60),
        ended_at=NOW + timedelta(minutes=40),
    )
    run(50)
    assert rows(task) == {(DAY, "running"): 5, (DAY, "sleeping"): 10, (DAY, "lent"): 10}


def test_rows_name_tenant_member_and_type_and_a_task_without_cards_has_none(member):
    task = up(member, task_type=TaskType.TRAINING)
    bare = up(cards=0)
    run(1)
    row = CardTime.objects.get()
    assert (row.tenant_slug, row.member) == (task.group.tenant.slug, member.username)
    assert (row.task_type, row.group_name) == ("training", task.group.name)
    assert rows(bare) == {}


def test_one_claim_that_can_not_be_counted_stops_no_other(monkeypatch):
    tasks = [up() for _ in range(3)]
    bad = tasks[1].claims.get().pk
    settle = loop.settle

    def trip(claims, *, now):
        if claims.filter(pk=bad).exists():
            raise RuntimeError("this one only")
        return settle(claims, now=now)

    monkeypatch.setattr(loop, "settle", trip)
    assert run(10) == {"claims": 3, "rows": 2, "failed": 1}
    monkeypatch.undo()
    run(20)
    assert [rows(task) for task in tasks] == [{(DAY, "running"): 20}] * 3


def end(task, minute):
    now = NOW + timedelta(minutes=minute)
    Task.objects.filter(pk=task.pk).update(state=State.STOPPED)
    Claim.objects.filter(task=task).update(released_at=now)
    move(task, minute, State.STOPPED)


def test_what_is_deleted_is_counted_to_its_end_first():
    deleted = up(deleted_at=NOW)
    end(deleted, 7)
    ticks.run_tick("recovery.sweep", NOW + timedelta(minutes=9))
    assert not Claim.objects.filter(task=deleted.pk).exists()
    assert rows(deleted) == {(DAY, "running"): 7}

    retired = up()
    Task.objects.filter(pk=retired.pk).update(retired_at=NOW)
    end(retired, 8)
    ticks.run_tick("upkeep.drain", NOW + timedelta(minutes=9))
    assert not Claim.objects.filter(task=retired.pk).exists()
    assert rows(retired) == {(DAY, "running"): 8}


def test_a_node_that_is_deleted_takes_no_card_time_along():
    task = up()
    delete_node(actor=SYSTEM, node=task.node, force=task.node.name, now=NOW + timedelta(minutes=6))
    assert not Claim.objects.exists()
    assert rows(task) == {(DAY, "running"): 6}


def test_a_group_whose_time_can_not_be_counted_is_not_removed(monkeypatch):
    task = up(deleted_at=NOW)
    end(task, 7)
    held = leases.acquire("test", "test", 60)

    def fail(claims):
        raise RuntimeError

    assert services.finish_deleted(lease=held, now=NOW, before=fail) == []
    assert Claim.objects.exists()


def test_who_sees_it(api_client, member, operator):
    tenant = member.memberships.get().tenant
    colleague = factories.make_member(tenant)
    owner = factories.make_member(tenant, Role.OWNER)
    mine, theirs, strangers = up(member), up(colleague), up()
    run(60)
    days = {"from": str(DAY), "to": str(DAY)}

    def seen(user):
        return {item["group_id"] for item in api_client(user).get(URL, days).json()["items"]}

    own, other, foreign = (task.group.public_id for task in (mine, theirs, strangers))
    assert seen(member) == {own}
    assert seen(owner) == {own, other}
    assert seen(operator) == {own, other, foreign}
    item = api_client(member).get(URL, days).json()["items"][0]
    assert (item["running_s"], item["sleeping_s"], item["lent_s"]) == (3600.0, 0.0, 0.0)
    table = api_client(member).get(f"{URL}.csv", days)
    lines = list(csv.DictReader(io.StringIO(table.getvalue().decode())))
    assert table["Content-Type"].startswith("text/csv")
    assert [(line["day"], line["group_id"], line["card_seconds"]) for line in lines] == [
        (str(DAY), own, "3600.000")
    ]


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"},
        {"to": "2026-02-30"},
        {"from": "2026-03-02", "to": "2026-03-01"},
        {"from": "2024-01-01", "to": "2026-03-01"},
        {"from": "2026-03-01", "to": "0001-01-01"},
    ],
)
@pytest.mark.parametrize("address", [URL, f"{URL}.csv"])
def test_days_that_make_no_sense_are_refused_by_name(api_client, member, query, address):
    assert api_client(member).get(address, query).status_code == 400


def test_the_earliest_days_are_no_error(api_client, member):
    assert api_client(member).get(URL, {"to": "0001-01-02", "from": "0001-01-01"}).status_code == 200
    assert api_client(member).get(URL, {"to": "0001-01-02"}).status_code in (200, 400)


def test_a_name_that_is_a_formula_is_text_in_the_table(member):
    up(member, name='=HYPERLINK("http://x")')
    run(1)
    assert "'=HYPERLINK" in "".join(write_csv(CardTime.objects.all()))


def test_the_portal_shows_it(member):
    task = up(member)
    CardTime.objects.create(
        day=date.today(),
        kind="running",
        task_id=task.public_id,
        attempt=9,
        tenant_id=task.group.tenant.public_id,
        tenant_slug=task.group.tenant.slug,
        member=member.username,
        task_type="inference",
        group_id=task.group.public_id,
        group_name="a <b>service</b>",
        card_ms=5_400_000,
        counted_until=NOW,
    )
    client = Client()
    client.force_login(member)
    text = client.get(reverse("portal:usage")).content.decode()
    assert "a &lt;b&gt;service&lt;/b&gt;" in text and "1.50" in text and "card-time.csv?from=" in text


def test_sums_are_by_service(member):
    one = up(member)
    second = factories.make_task(one.group, state=State.RUNNING, attempt=1, node=one.node)
    factories.make_claim(second, one.node, incarnation="run-1", percent=50)
    run(60)
    found = time_by_group(SYSTEM, DAY, DAY)
    assert [(time.group_id, time.running_s) for time in found] == [(one.group.public_id, 5400.0)]
