"""What the scheduler knows of nodes, cards and what holds them: every field of them in its snapshot."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from agent.contract.states import Desired, Parallelism, State, TaskType
from apps.fleet.models import ModelFile, Node
from apps.scheduling.policy.snapshot import CardHold, NodeView, Thresholds
from apps.scheduling.selectors import load_snapshot, load_snapshot_of
from apps.workloads.models import Loan, Reservation, Task, TaskGroup
from tests import factories

pytestmark = pytest.mark.django_db

NOW = factories.NOW
PORT = [{"container_port": 8000}]


def nodes(now=NOW) -> list[NodeView]:
    snapshot = load_snapshot(now) or load_snapshot_of([], now)
    return list(snapshot.nodes)


def running(node: Node, group: TaskGroup | None = None, *, percent: int | None = None, **fields: Any) -> Task:
    """A task that runs there and has a port."""
    base = {"state": State.RUNNING, "attempt": 1, "node": node, "ports": PORT}
    task = factories.make_task(group, **{**base, **fields})
    factories.make_claim(task, node, percent=percent)
    return task


def hold(node: Node, now=NOW) -> CardHold:
    """The one on the first card."""
    (found,) = next(one for one in nodes(now) if one.id == node.pk).cards[0].holds
    return found


# --- nodes and cards ------------------------------------------------------------------------------


@pytest.mark.req("SCHED-03")
def test_a_node_is_told_with_its_load_folders_images_and_labels() -> None:
    factories.make_node(
        load={"cpu_percent": 91.5, "memory_percent": None, "disk_percent": 3.0},
        volume_prefixes=["/data", "/srv"],
        host_ipc=False,
        images=["vllm/vllm-openai:v1"],
        labels={"zone": "b", "rdma": "true"},
    )
    (node,) = nodes()
    assert (node.cpu_percent, node.memory_percent, node.disk_percent) == (91.5, None, 3.0)
    assert (node.volume_prefixes, node.host_ipc) == (("/data", "/srv"), False)
    assert (node.images, node.zone, node.rdma) == ({"vllm/vllm-openai:v1"}, "b", True)


@pytest.mark.req("SCHED-03")
@pytest.mark.parametrize("label", [{}, {"rdma": ""}, {"rdma": "No"}, {"rdma": "0"}, {"rdma": "false"}])
def test_what_a_node_never_told_is_no_answer(label: dict[str, str]) -> None:
    factories.make_node(load=False, sample=False, labels=label, host_ipc=None)
    (node,) = nodes()
    assert (node.cpu_percent, node.memory_percent, node.disk_percent) == (None, None, None)
    assert (node.volume_prefixes, node.host_ipc, node.zone, node.rdma) == (None, None, "", False)
    assert (node.images, node.models) == (frozenset(), frozenset())
    (card,) = node.cards
    assert (card.used_mb, card.foreign_mb, card.foreign, card.link_group, card.pcie_root) == (
        None,
        None,
        "",
        None,
        "",
    )


@pytest.mark.req("SCHED-04")
def test_a_card_is_told_with_strangers_neighbours_and_what_each_owner_uses() -> None:
    node = factories.make_node(cards=0)
    card = factories.make_card(node, 0, sample=False, link_group=0, pcie_root="0")
    tasks = [factories.make_task(state=State.RUNNING, attempt=3, node=node, ports=PORT) for _ in range(2)]
    for task in tasks:
        factories.make_claim(task, node, cards=[card], percent=40)
    sample = {"vram_used_mb": 9000, "foreign_mb": 1300, "foreign": "python3"}
    owned = {f"{tasks[0].public_id}.3": 5000, f"{tasks[0].public_id}.2": 777}
    row = factories.CardSample.objects.create(card=card, sampled_at=NOW, owned_mb=owned, **sample)

    (told,) = nodes()[0].cards
    assert (told.used_mb, told.foreign_mb, told.foreign) == (9000, 1300, "python3")
    assert (told.link_group, told.pcie_root) == (0, "0")
    assert {one.task_id: one.measured_mb for one in told.holds} == {tasks[0].pk: 5000, tasks[1].pk: 0}

    row.owned_mb, row.foreign_mb = None, None  # the driver does not tell whose it is
    row.save()
    (told,) = nodes()[0].cards
    assert [one.measured_mb for one in told.holds] == [None, None] and told.foreign_mb is None


@pytest.mark.req("SCHED-03")
def test_models_are_told_where_they_lie_and_only_those_that_somebody_waits_for() -> None:
    here, there = factories.make_node("a"), factories.make_node("b")
    for node, path in [(here, "/m/one"), (here, "/m/other"), (there, "/m/other")]:
        ModelFile.objects.create(node=node, path=path)
    factories.make_task(model_path="/m/one")
    assert [node.models for node in nodes()] == [{"/m/one"}, frozenset()]


# --- what is held ---------------------------------------------------------------------------------


@pytest.mark.req("SCHED-11")
def test_a_hold_tells_whom_it_may_be_taken_from() -> None:
    node = factories.make_node()
    group = factories.make_group(priority=-5, preemptible=True)
    task = running(node, group, percent=45)
    assert hold(node) == CardHold(
        tenant_id=group.tenant_id,
        percent=45,
        inference=True,
        task_id=task.pk,
        priority=-5,
        preemptible=True,
        since=NOW,
    )


@pytest.mark.req("SCHED-11")
def test_who_gave_way_lately_is_not_asked_again(settings: Any) -> None:
    settings.PREEMPTION_PAUSE_S = 600.0
    node = factories.make_node()
    running(node, factories.make_group(preemptible=True), preempted_at=NOW)
    assert not hold(node, NOW + timedelta(seconds=599)).preemptible
    assert hold(node, NOW + timedelta(seconds=600)).preemptible


@pytest.mark.req("SCHED-11")
@pytest.mark.parametrize(
    ("fields", "leaving", "preemptible"),
    [
        ({"state": State.SCHEDULING}, False, True),
        ({"state": State.SLEEPING, "desired": Desired.SLEEP}, False, True),
        ({"state": State.WAKING}, False, True),
        ({"state": State.DRAINING, "desired": Desired.SLEEP}, False, False),
        ({"state": State.DRAINING, "desired": Desired.STOP}, True, False),
        ({"state": State.STOPPING}, True, False),
        ({"state": State.STOPPED}, True, False),
        ({"state": State.FAILED}, True, False),
        ({"state": State.PENDING}, True, False),  # evicted: its old place is not given back yet
    ],
)
def test_what_is_on_its_way_out_leaves_by_itself(
    fields: dict[str, Any], leaving: bool, preemptible: bool
) -> None:
    node = factories.make_node()
    running(node, factories.make_group(preemptible=True), **fields)
    told = hold(node)
    assert (told.leaving, told.preemptible) == (leaving, preemptible)
    assert told.sleeping == (fields["state"] == State.SLEEPING)


def test_an_earlier_attempt_leaves_and_does_not_sleep() -> None:
    node = factories.make_node()
    task = factories.make_task(state=State.SLEEPING, desired=Desired.SLEEP, attempt=2, node=node)
    factories.make_claim(task, node, attempt=1)
    assert (hold(node).leaving, hold(node).sleeping) == (True, False)


@pytest.mark.req("SCHED-16")
def test_inference_without_ports_counts_nothing_on_its_card_nor_for_the_cap() -> None:
    node = factories.make_node()
    running(node, percent=45, ports=[])
    assert hold(node).percent == 0
    assert nodes()[0].inference_count == 0


@pytest.mark.req("SCHED-16")
def test_the_card_alone_stays_alone_and_other_work_needs_no_port() -> None:
    alone, trained = factories.make_node("a"), factories.make_node("b")
    running(alone, ports=[])
    running(trained, factories.make_group(task_type=TaskType.TRAINING), percent=30, ports=[])
    assert (hold(alone).percent, hold(trained).percent) == (None, 30)
    assert not hold(trained).inference


@pytest.mark.req("SHARE-04")
def test_a_borrower_is_told_and_an_ended_loan_is_none() -> None:
    node = factories.make_node()
    lender = running(node, percent=40, state=State.SLEEPING, desired=Desired.SLEEP)
    borrower = running(node, factories.make_group(task_type=TaskType.TRAINING))
    loan = make_loan(lender, borrower)
    told = {one.task_id: one for one in nodes()[0].cards[0].holds}
    assert (told[borrower.pk].borrowed, told[lender.pk].borrowed) == (True, False)
    assert (told[lender.pk].sleeping, told[lender.pk].lendable) == (True, False)
    Loan.objects.filter(pk=loan.pk).update(ended_at=NOW)
    assert not any(one.borrowed for one in nodes()[0].cards[0].holds)


def make_loan(lender: Task, borrower: Task) -> Loan:
    share, claim = lender.claims.get().cards.get(), borrower.claims.get()
    return Loan.objects.create(card=share, borrower=claim, since=NOW, until=NOW)


@pytest.mark.req("SHARE-04")
@pytest.mark.parametrize(
    ("fields", "lendable"),
    [
        ({"state": State.SLEEPING, "desired": Desired.SLEEP}, True),
        ({"state": State.SLEEPING, "desired": Desired.RUN}, False),  # somebody asked it to wake
        ({"state": State.RUNNING}, False),
    ],
)
def test_what_sleeps_may_be_borrowed_from(fields: dict[str, Any], lendable: bool) -> None:
    node = factories.make_node()
    task = running(node, percent=40, **fields)
    assert hold(node).lendable == lendable
    task.group.tenant.lends = False
    task.group.tenant.save()
    assert not hold(node).lendable


@pytest.mark.req("SCHED-11")
def test_kept_room_is_a_hold_for_the_task_that_waits_until_its_time_is_up() -> None:
    node = factories.make_node()
    group = factories.make_group(priority=7, task_type=TaskType.TRAINING)
    task = factories.make_task(group)
    kept = Reservation.objects.create(
        task=task, node=node, percent=None, created_at=NOW, until=NOW + timedelta(seconds=120)
    )
    kept.cards.set(node.cards.all())
    assert hold(node) == CardHold(group.tenant_id, None, False, priority=7, reserved_for=task.pk)
    assert nodes()[0].tenants == frozenset()  # nobody lives there yet
    assert nodes(NOW + timedelta(seconds=120))[0].cards[0].holds == ()
    Task.objects.filter(pk=task.pk).update(state=State.STOPPED)
    assert nodes()[0].cards[0].holds == ()


# --- who lives there ------------------------------------------------------------------------------


@pytest.mark.req("SCHED-06", "SCHED-16")
def test_the_cap_counts_inference_with_a_port_awake_or_asleep_each_once(settings: Any) -> None:
    settings.INFERENCE_CAP_PER_GPU = 8
    node = factories.make_node("a", cards=3)
    running(node, gpu_required=2)  # one container on two cards
    running(node, state=State.SLEEPING, desired=Desired.SLEEP)
    running(node, factories.make_group(task_type=TaskType.TRAINING))
    running(node, ports=[])
    own = factories.make_node("b", cards=3, inference_cap=0)
    running(own, gpu_required=0)
    factories.make_node("c", cards=0)
    factories.make_node("d", cards=[{}, {"present": False}])
    assert [(one.inference_count, one.inference_cap) for one in nodes()] == [(2, 24), (1, 0), (0, 8), (0, 8)]


def test_siblings_are_counted_by_group_each_once() -> None:
    node = factories.make_node(cards=2)
    group = factories.make_group()
    running(node, group, gpu_required=2)
    running(node, group, gpu_required=0)
    assert nodes()[0].siblings == {group.pk: 2}


@pytest.mark.req("SCHED-09")
@pytest.mark.parametrize(
    ("host_ipc", "group", "gpus", "wide"),
    [
        (False, {}, 1, False),
        (None, {}, 1, False),
        (None, {}, 2, True),  # not told counts as yes
        (True, {}, 2, True),
        (False, {}, 2, False),
        (True, {"task_type": TaskType.TRAINING}, 2, False),
        (False, {"parallelism": Parallelism.PIPELINE_PARALLEL, "world_size": 2}, 1, True),
    ],
)
def test_whose_tasks_reach_beyond_their_containers(
    host_ipc: bool | None, group: dict[str, Any], gpus: int, wide: bool
) -> None:
    node = factories.make_node(cards=3, host_ipc=host_ipc)
    mine, other = factories.make_group(**group), factories.make_group()
    running(node, mine, gpu_required=gpus)
    running(node, other, gpu_required=0)
    (told,) = nodes()
    assert told.tenants == {mine.tenant_id, other.tenant_id}
    assert told.host_wide == ({mine.tenant_id} if wide else frozenset())


@pytest.mark.req("SCHED-09")
def test_what_is_not_confirmed_gone_still_lives_there_and_what_is_gone_does_not() -> None:
    node = factories.make_node()
    task = running(node, state=State.STOPPED, desired=Desired.STOP)
    assert nodes()[0].tenants == {task.group.tenant_id}
    task.claims.update(released_at=NOW)
    assert nodes()[0].tenants == frozenset() and nodes()[0].cards[0].holds == ()


# --- the whole ------------------------------------------------------------------------------------


@pytest.mark.req("SCHED-03", "SCHED-17")
def test_settings_are_part_of_what_a_decision_rests_on(settings: Any) -> None:
    settings.LOAD_THRESHOLD_CPU, settings.LOAD_THRESHOLD_MEMORY, settings.LOAD_THRESHOLD_DISK = 70, 80, 95
    factories.make_tenant()
    heavy = factories.make_tenant(weight=3.0)
    factories.make_task()
    snapshot = load_snapshot(NOW)
    assert snapshot is not None
    assert (snapshot.thresholds, snapshot.fair_weights) == (Thresholds(70, 80, 95), None)
    settings.FAIR_SHARE = True
    assert load_snapshot_of([], NOW).fair_weights == {heavy.pk: 3.0}


@pytest.mark.req("SCHED-14")
def test_the_number_of_statements_knows_no_size_of_the_fleet() -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert load_snapshot(NOW) is not None
        return len(seen)

    factories.make_task(model_path="/m/x")
    one = count()
    for _ in range(3):
        node = factories.make_node(cards=2)
        lender = running(node, percent=40, state=State.SLEEPING, desired=Desired.SLEEP)
        make_loan(lender, running(node, factories.make_group(task_type=TaskType.TRAINING)))
        task = factories.make_task(model_path="/m/x")
        kept = Reservation.objects.create(
            task=task, node=node, created_at=NOW, until=NOW + timedelta(seconds=9)
        )
        kept.cards.set(node.cards.all())
    assert count() == one <= 20


def test_views_are_values() -> None:
    factories.make_task()
    first, second = load_snapshot(NOW), load_snapshot(NOW)
    assert first == second and replace(first) is not first  # type: ignore[type-var]
