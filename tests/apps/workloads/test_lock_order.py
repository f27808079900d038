"""Whoever puts work on a node locks nodes, then cards, then groups, so that none of them stops another one
(SCHED-12)."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.fleet.models import Card, Duty, Node
from apps.workloads import services
from apps.workloads.models import Task
from apps.workloads.services import Placement, RoomWanted
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_node, make_task

pytestmark = [pytest.mark.django_db, pytest.mark.req("SCHED-12")]

ORDER = [f'FROM "{table}"' for table in ("fleet_node", "fleet_card", "workloads_taskgroup")]


def first_reads(asked: CaptureQueriesContext) -> Iterator[int]:
    """Where each kind of row is read first, as rows are that are locked: alone, in the order of their ids."""
    for table in ORDER:
        name = table.split('"')[1]
        yield next(
            place
            for place, one in enumerate(asked.captured_queries)
            if one["sql"].startswith("SELECT") and f'{table} WHERE "{name}"."id"' in one["sql"]
        )


def placement(task: Task, node: Node) -> Placement:
    cards = tuple(Card.objects.filter(node=node).values_list("pk", flat=True))
    return Placement(task.pk, task.version, node.pk, cards, None, ())


@pytest.mark.parametrize("way", ["place", "make_room", "replace", "move"])
def test_everybody_locks_in_one_order(life: Life, way: str) -> None:
    old, node = make_node(), make_node()
    task = make_task()
    if way == "make_room":
        life.run(make_task(make_group(preemptible=True, priority=-1)), node)
    elif way == "replace":
        life.run(task, old)
    elif way == "move":
        life.place(task, old)
    Node.objects.filter(pk=old.pk).update(duty=Duty.DRAIN)
    task.refresh_from_db()
    where = placement(task, node)
    victims = tuple(Task.objects.filter(node=node).values_list("pk", flat=True))
    room = RoomWanted(task.pk, task.version, node.pk, victims, where.cards, None)
    acts = {
        "place": lambda: services.commit_placements(lease=life.lease, placements=[where], now=NOW),
        "make_room": lambda: services.make_room(lease=life.lease, wanted=[room], now=NOW),
        "replace": lambda: services.begin_replacement(lease=life.lease, placement=where, now=NOW),
        "move": lambda: services.move_task(lease=life.lease, placement=where, now=NOW),
    }
    with CaptureQueriesContext(connection) as asked:
        assert acts[way]()
    reads = list(first_reads(asked))
    assert reads == sorted(reads), [one["sql"] for one in asked.captured_queries]
