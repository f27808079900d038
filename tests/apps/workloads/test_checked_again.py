"""What a commit reads of rows before it writes: a view that is true no more places nothing (SCHED-12)."""

from datetime import timedelta

import pytest

from agent.contract.states import Parallelism, State
from apps.fleet.models import Node
from apps.tenants import redline
from apps.tenants.models import SharedGroup, Tenant, TenantStatus
from apps.workloads import services
from apps.workloads.models import Claim, Reservation, Task
from apps.workloads.services import Placement
from tests import factories
from tests.apps.workloads.conftest import Life
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("SCHED-12")]
PORT = [{"container_port": 8000}]


def placement(task: Task, node: Node, *, cards: int = 1, percent: int | None = None) -> Placement:
    rows = tuple(node.cards.order_by("-index").values_list("pk", flat=True)[:cards])
    return Placement(task.pk, task.version, node.pk, rows, percent, ())


def commits(life: Life, *placements: Placement) -> set[int]:
    return services.commit_placements(lease=life.lease, placements=list(placements), now=NOW)


def share(tenant: Tenant | None = None, **group: object) -> Task:
    service = factories.make_group(tenant, gpu_memory_utilization=40, **group)  # type: ignore[arg-type]
    return factories.make_task(service, ports=PORT)


def standing(task: Task, node: Node, *, percent: int | None = 40) -> Task:
    """It lives on the node's first cards."""
    Task.objects.filter(pk=task.pk).update(state=State.RUNNING, attempt=1, node=node)
    factories.make_claim(task, node, percent=percent, incarnation="run-1")
    task.refresh_from_db()
    return task


@pytest.mark.req("SCHED-09", "SHARE-05")
def test_tenants_that_share_no_more_do_not_meet_on_a_card(life: Life) -> None:
    node = factories.make_node()
    there, task = standing(share(), node), share()
    shared = factories.make_shared_group(there.group.tenant, task.group.tenant)
    SharedGroup.objects.filter(pk=shared.pk).delete()
    assert commits(life, placement(task, node, percent=40)) == set()
    factories.make_shared_group(there.group.tenant, task.group.tenant)
    assert commits(life, placement(task, node, percent=40)) == {task.pk}


@pytest.mark.req("SCHED-09")
def test_who_shares_is_unknown_so_nobody_does(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    node = factories.make_node()
    there, task = standing(share(), node), share()
    factories.make_shared_group(there.group.tenant, task.group.tenant)
    monkeypatch.setattr(redline, "SharedGroup", None)
    assert commits(life, placement(task, node, percent=40)) == set()


@pytest.mark.req("SCHED-09")
@pytest.mark.parametrize(
    ("ipc", "placed"), [(None, False), (True, False), (False, True)], ids=["untold", "host", "own"]
)
def test_an_engine_over_several_cards_meets_no_stranger_on_its_node(
    life: Life, ipc: bool | None, placed: bool
) -> None:
    node = factories.make_node(cards=3, host_ipc=ipc)
    standing(share(), node)
    task = factories.make_task(gpu_required=2, ports=PORT)
    assert bool(commits(life, placement(task, node, cards=2))) == placed
    wide = factories.make_node(cards=3, host_ipc=ipc)
    standing(factories.make_task(gpu_required=2), wide, percent=None)
    assert bool(commits(life, placement(share(), wide, percent=40))) == placed


@pytest.mark.req("SCHED-09")
def test_a_stage_with_the_hosts_network_meets_no_stranger(life: Life) -> None:
    node = factories.make_node(cards=2, host_ipc=False)
    standing(share(), node)
    stage = factories.make_task(factories.make_group(parallelism=Parallelism.PIPELINE_PARALLEL))
    assert commits(life, placement(stage, node)) == set()


@pytest.mark.req("SCHED-06", "SCHED-16")
def test_a_node_takes_no_more_inference_than_its_cap_sleepers_counted(life: Life) -> None:
    node = factories.make_node(cards=2, inference_cap=1)
    there = standing(share(), node)
    Task.objects.filter(pk=there.pk).update(state=State.SLEEPING)
    task = share(there.group.tenant)
    assert commits(life, placement(task, node, percent=40)) == set()
    bare = factories.make_task(factories.make_group(there.group.tenant))
    assert commits(life, placement(bare, node)) == {bare.pk}, "without ports it is not counted"
    Node.objects.filter(pk=node.pk).update(inference_cap=None)
    other = factories.make_node()
    assert commits(life, placement(task, other, percent=40)) == {task.pk}


@pytest.mark.req("TEN-01")
def test_nothing_of_a_tenant_that_was_suspended_meanwhile(life: Life) -> None:
    node, task = factories.make_node(), factories.make_task()
    Tenant.objects.filter(pk=task.group.tenant_id).update(status=TenantStatus.SUSPENDED)
    assert commits(life, placement(task, node)) == set()


@pytest.mark.req("SCHED-11")
def test_kept_room_counts_until_its_time_is_up(life: Life) -> None:
    node, task, waiting = factories.make_node(), factories.make_task(), factories.make_task()
    kept = Reservation.objects.create(
        task=waiting, node=node, created_at=NOW, until=NOW + timedelta(seconds=1)
    )
    kept.cards.set(node.cards.all())
    assert commits(life, placement(task, node)) == set()
    Reservation.objects.update(until=NOW)
    assert commits(life, placement(task, node)) == {task.pk}


@pytest.mark.req("SCHED-02")
def test_the_rest_of_a_slice_is_written_and_a_gang_only_as_a_whole(life: Life) -> None:
    node = factories.make_node(cards=4)
    cards = list(node.cards.order_by("index").values_list("pk", flat=True))
    group = factories.make_group(parallelism=Parallelism.PIPELINE_PARALLEL)
    first, second = factories.make_task(group), factories.make_task(group)
    alone, late = factories.make_task(group.tenant.task_groups.get()), factories.make_task(group)
    standing(late, node, percent=None)

    def put(task: Task, card: int, gang: str = "") -> Placement:
        return Placement(task.pk, task.version, node.pk, (cards[card],), None, (), gang=gang)

    # the second of the gang would stand on the card that is held already
    slice_ = [put(first, 1, "g"), put(alone, 2), put(second, 0, "g")]
    assert commits(life, *slice_) == {alone.pk}
    assert set(Claim.objects.values_list("task", flat=True)) == {late.pk, alone.pk}
    assert commits(life, put(first, 1, "g"), put(second, 3, "g")) == {first.pk, second.pk}
