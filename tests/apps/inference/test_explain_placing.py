"""What a wait for a place is told to tenants and operators: the line, all nodes in short, kept room, loans,
and nothing of anybody else (SVC-14, SCHED-09, SCHED-11, SHARE-04)."""

import json
from datetime import timedelta

import pytest

from agent.contract.states import State
from apps.fleet.models import CardSample
from apps.inference import selectors
from apps.inference.api.explaining import HolderShape, LineShape, LoanOfTaskShape
from apps.inference.explain import explain
from apps.inference.hearing import hear_nodes
from apps.scheduling.selectors import load_snapshot_of
from apps.tenants.scope import viewer_of
from apps.workloads.models import Loan, Reservation, TaskGroup
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-14")]

AT = NOW + timedelta(seconds=60)
SHARED = {"ports": [{"container_port": 8000, "host_port": 0}]}


@pytest.fixture
def group(tenant, member):
    return factories.make_group(tenant, member)


@pytest.fixture
def other():
    return factories.make_tenant("their-tenant", name="Their Tenant")


def only(user, group):
    (task,) = explain(viewer_of(user), TaskGroup.objects.get(pk=group.pk), now=NOW)["tasks"]
    return task


def test_its_place_in_the_line_is_told_by_numbers_alone(member, group, other):
    ahead = factories.make_task(factories.make_group(other, priority=5, name="their-service"))
    factories.make_task(factories.make_group(other, name="their-stopped"), desired="stop")
    factories.make_task(group)
    behind = factories.make_group(group.tenant, name="behind")
    factories.make_task(behind, now=NOW + timedelta(seconds=1))
    task = only(member, group)
    assert task["line"] == {"position": 2, "waiting": 3} and set(task["line"]) == set(LineShape().fields)
    assert "their" not in json.dumps(task, default=str) and ahead.public_id not in json.dumps(
        task, default=str
    )


def test_all_nodes_are_summed_up_in_one_sentence(member, group):
    factories.make_node("off", last_seen_at=None)
    factories.make_node("small", vram_total_mb=4000)
    factories.make_task(group, estimated_gpu_memory_mb=20000)
    summary = only(member, group)["summary"]
    assert "none of 2 nodes" in summary and "offline" in summary and "19.5 GB needed" in summary
    factories.make_node("fits", vram_total_mb=90000)
    assert only(member, group)["summary"] == ""


def test_replicas_that_hear_the_same_are_told_it_once(member, group):
    """A thousand replicas and two hundred nodes would be two hundred thousand sentences."""
    factories.make_node(cards=1)
    alike = [factories.make_task(group, gpu_required=2) for _ in range(3)]
    unlike = factories.make_task(group, gpu_required=3)
    snapshot = load_snapshot_of([task.pk for task in (*alike, unlike)], NOW)
    heard = hear_nodes(viewer_of(member), snapshot)
    assert len({id(heard[task.pk]) for task in alike}) == 1
    assert heard[alike[0].pk].words[0]["reason"]["params"]["wanted"] == 2
    assert heard[unlike.pk].words[0]["reason"]["params"]["wanted"] == 3


@pytest.mark.req("SCHED-11")
def test_room_that_is_kept_and_why_it_lost_its_place(member, group):
    node = factories.make_node("rack-1", cordoned=True)
    task = factories.make_task(group, preempted_at=NOW)
    kept = Reservation.objects.create(task=task, node=node, created_at=NOW, until=AT)
    told = only(member, group)
    assert (told["kept_until"], told["gave_way_at"]) == (AT, NOW)
    assert (told["awaited"]["code"], told["awaited"]["until"]) == ("await_room", AT)
    kept.until = NOW
    kept.save()
    told = only(member, group)
    assert told["kept_until"] is None and told["awaited"]["code"] == "await_place"


@pytest.mark.req("SHARE-04")
def test_loans_are_told_and_the_other_side_to_those_who_may_know_it(member, operator, group, other):
    node = factories.make_node("rack-1")
    lender = factories.make_task(group, node=node, attempt=1, state=State.SLEEPING, desired="sleep")
    theirs = factories.make_task(
        factories.make_group(other, name="their-training"), node=node, attempt=1, state=State.RUNNING
    )
    share = factories.make_claim(lender, node).cards.get()
    borrower = factories.make_claim(theirs, node)
    Loan.objects.create(card=share, borrower=borrower, since=NOW, until=AT)
    (loan,) = only(member, group)["loans"]
    assert loan == {"kind": "lent", "card": 0, "other": None, "until": AT}
    assert set(loan) == set(LoanOfTaskShape().fields)
    assert only(operator, group)["loans"][0]["other"] == theirs.name
    (loan,) = only(operator, theirs.group)["loans"]
    assert (loan["kind"], loan["other"]) == ("borrowed", lender.name)


def test_operators_see_who_holds_the_cards_and_tenants_do_not(member, operator, group, other):
    node = factories.make_node("rack-1")
    theirs = factories.make_task(
        factories.make_group(other, name="their-service", gpu_memory_utilization=40),
        node=node,
        attempt=1,
        state=State.RUNNING,
        **SHARED,
    )
    factories.make_claim(theirs, node, percent=40)
    factories.make_task(group)
    assert only(member, group)["nodes"][0]["holders"] == []
    (holder,) = only(operator, group)["nodes"][0]["holders"]
    assert holder == {
        "card": 0,
        "tenant": "their-tenant",
        "service": "their-service",
        "task": theirs.public_id,
        "percent": 40,
        "state": "held",
    }
    assert set(holder) == set(HolderShape().fields)


def test_a_process_beside_the_platform_is_named_to_operators_alone(member, operator, group):
    why = {"wanted_mb": 20000, "free_mb": 3000, "foreign_mb": 21000, "process": "miner (pid 7)", "nodes": 1}
    factories.make_task(
        group,
        reason_code="insufficient_resources",
        reason_params={"nodes": 1},
        refusals=[{"code": "foreign_memory", "params": why}],
    )

    def tell(user):
        return json.dumps(
            selectors.describe(viewer_of(user), TaskGroup.objects.get(pk=group.pk)), default=str
        )

    assert "miner" not in tell(member) and "20.5 GB" in tell(member)
    assert "miner" in tell(operator)


@pytest.mark.req("SCHED-09")
def test_no_answer_to_a_tenant_holds_anything_of_another(member, group, other, api_client):
    """Every kind of refusal that others' work can cause, and every address that tells of the wait."""
    shared = factories.make_node("shared", cards=2)
    group.gpu_memory_utilization = 30
    group.save()
    secrets = ["their-", "Their Tenant", other.public_id, "miner"]
    for percent, card in ((37, 0), (None, 1)):
        theirs = factories.make_task(
            factories.make_group(other, name=f"their-{card}", gpu_memory_utilization=percent),
            name=f"their-task-{card}",
            node=shared,
            attempt=1,
            state=State.RUNNING,
            **SHARED,
        )
        factories.make_claim(theirs, shared, percent=percent, cards=[shared.cards.get(index=card)])
        secrets += [theirs.public_id, theirs.group.public_id]
    foreign = factories.make_node("with-a-stranger")
    CardSample.objects.filter(card__node=foreign).update(
        vram_used_mb=24000, foreign_mb=24000, foreign="miner (pid 7)"
    )
    factories.make_node("their-node", allowed_tenants=[other])
    factories.make_task(group, **SHARED)
    client = api_client(member)
    base = f"/api/v1/task-groups/{group.public_id}"
    for address in (base, f"{base}/explain", f"{base}/events", "/api/v1/task-groups"):
        said = client.get(address).content.decode()
        assert [secret for secret in secrets if secret in said] == [], address
    told = only(member, group)
    assert {word["node"] for word in told["nodes"]} == {"shared", "with-a-stranger"}
    assert not any(word["fits"] for word in told["nodes"])
    said = json.dumps(told, default=str)
    assert [secret for secret in [*secrets, "37 %"] if secret in said] == []


@pytest.mark.req("SHARE-03")
def test_qos_is_told_of_what_holds_a_card(member, group):
    node = factories.make_node(
        "rack-1", in_container=False, cards=[{"mig_capable": False, "mps_capable": True}, {}]
    )
    task = factories.make_task(group, node=node, attempt=2, state=State.RUNNING)
    assert describe(member, group)["qos"] is None
    factories.make_claim(task, node, percent=40, attempt=2)
    assert describe(member, group)["qos"] == "silver"
    node.in_container = True
    node.save()
    assert describe(member, group)["qos"] == "bronze"


def describe(user, group):
    (task,) = selectors.describe(viewer_of(user), TaskGroup.objects.get(pk=group.pk))["tasks"]
    one = selectors.describe_one_task(viewer_of(user), group.tasks.select_related("node", "group").get())
    assert one["qos"] == task["qos"]
    return task
