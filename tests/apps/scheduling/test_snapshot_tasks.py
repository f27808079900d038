"""What the scheduler knows of tasks that wait: every field of theirs in its snapshot, from their rows."""

from typing import Any

import pytest

from agent.contract.states import Parallelism, TaskType
from apps.scheduling.policy.snapshot import TaskView
from apps.scheduling.selectors import load_snapshot, load_snapshot_of
from apps.scheduling.waiting import view_of
from apps.workloads.models import Task
from tests import factories
from tests.apps.scheduling.test_snapshot import NOW, PORT, nodes

pytestmark = pytest.mark.django_db


def view(task: Task) -> TaskView:
    (found,) = load_snapshot_of([task.pk], NOW).tasks
    return found


@pytest.mark.req("SCHED-02", "PAR-03")
def test_stages_of_a_pipeline_are_one_gang() -> None:
    group = factories.make_group(
        parallelism=Parallelism.PIPELINE_PARALLEL, world_size=6, preemptible=True, priority=3
    )
    head, second = (factories.make_task(group, gpu_required=2, ports=PORT, generation=4) for _ in range(2))
    told = view(head)
    assert (told.gang, told.gang_size, told.host_network) == (f"{group.pk}.4", 3, True)
    assert (told.rank, told.counted, told.preemptible, told.priority) == (0, True, True, 3)
    assert told.ports == ((8000, 0), (0, 0))  # its own, and where they meet
    assert (view(second).ports, view(second).rank, view(second).counted) == ((), 1, True)
    node = factories.make_node(cards=2, host_ipc=False)
    factories.make_claim(second, node)
    assert {one.gang for card in nodes()[0].cards for one in card.holds} == {f"{group.pk}.4"}


def test_a_task_alone_is_no_gang() -> None:
    told = view(factories.make_task(ports=PORT))
    assert (told.gang, told.gang_size, told.host_network, told.counted) == ("", 1, False, True)
    assert not view(factories.make_task(ports=[])).counted


@pytest.mark.req("AGENT-05")
def test_host_paths_are_told_once_and_a_relative_model_is_none() -> None:
    volumes = ["/data/a:/in:ro", "/data/b", "/data/a:/again"]
    assert view(factories.make_task(volumes=volumes, model_path="/m/x")).volumes == (
        "/data/a",
        "/data/b",
        "/m/x",
    )
    assert view(factories.make_task(volumes=[], model_path="qwen")).volumes == ()


@pytest.mark.req("SHARE-04")
@pytest.mark.parametrize(
    ("kind", "gpus", "may"),
    [
        (TaskType.TRAINING, 1, True),
        (TaskType.TRAINING, 0, False),
        (TaskType.CONTAINER, 1, False),
        (TaskType.INFERENCE, 1, False),
    ],
)
def test_only_training_on_cards_may_borrow(kind: TaskType, gpus: int, may: bool) -> None:
    told = view(factories.make_task(factories.make_group(task_type=kind), gpu_required=gpus))
    assert told.may_borrow == may


def test_a_task_that_is_not_written_is_seen_as_it_will_be() -> None:
    group = factories.make_group(labels={"heteroflow.engine": "vllm"}, gpu_memory_utilization=30)
    task = factories.make_task(group, ports=PORT, volumes=["/data/a:/in"], command=["serve"], engine="")
    before = view(task)
    assert view_of(Task.objects.select_related("group").get(pk=task.pk)) == before
    assert (before.engine, before.percent, before.has_command) == ("vllm", 30, True)


@pytest.mark.req("RECOV-05")
@pytest.mark.parametrize(
    "broken",
    [{"ports": [{}]}, {"ports": "x"}, {"command": 7}, {"volumes": [1]}, {"node_refusals": 7}],
)
def test_a_row_that_can_not_be_read_stops_no_other(broken: dict[str, Any], caplog: Any) -> None:
    bad, good = factories.make_task(), factories.make_task()
    Task.objects.filter(pk=bad.pk).update(**broken)
    snapshot = load_snapshot(NOW)
    assert snapshot is not None and [task.id for task in snapshot.tasks] == [good.pk]
    assert f"task row {bad.pk}" in caplog.text
