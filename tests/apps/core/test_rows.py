"""Rows by the hundred: what is inserted and asked for is what single rows would give."""

import pytest
from django.db import IntegrityError, transaction

from apps.core import rows
from apps.fleet.models import Card, Port
from apps.workloads.models import Event
from tests import factories

pytestmark = pytest.mark.django_db


def test_columns_become_rows_in_order_with_defaults_for_the_rest() -> None:
    task = factories.make_task()
    params = [{"n": number, "s": "“%s”"} for number in range(700)]
    columns = {
        "group_id": task.group_id,
        "task_id": [task.pk, *[None] * 699],
        "code": "placed",
        "params": params,
        "actor": "me",
        "at": factories.NOW,
    }
    ids = rows.insert_columns(Event, columns, 700)
    found = list(Event.objects.filter(pk__among=ids).order_by("pk"))
    assert [event.pk for event in found] == sorted(ids) and len(ids) == 700
    assert [Event.objects.get(pk=pk).params["n"] for pk in (ids[0], ids[350], ids[-1])] == [0, 350, 699]
    assert (found[0].task, found[1].task, found[0].from_state, found[0].at) == (task, None, "", factories.NOW)
    assert found[5].params == params[5]


def test_more_rows_than_one_statement_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_VALUES", 20)
    node = factories.make_node()
    columns = {"node_id": node.pk, "number": list(range(50)), "owner": "t", "attempt": 1, "container_port": 1}
    assert len(set(rows.insert_columns(Port, columns, 50))) == Port.objects.count() == 50


def test_what_may_not_be_twice_is_refused() -> None:
    node = factories.make_node()
    columns = {"node_id": node.pk, "number": [7, 7], "owner": "t", "attempt": 1, "container_port": 1}
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.insert_columns(Port, columns, 2)
    assert not Port.objects.exists()


def test_among_many_none_and_over_a_relation() -> None:
    node, other = factories.make_node(cards=3), factories.make_node()
    first, second, _ = node.cards.order_by("index")
    assert list(Card.objects.filter(pk__among={first.pk, second.pk}).order_by("index")) == [first, second]
    assert not Card.objects.filter(pk__among=[]).exists()
    assert Card.objects.filter(node__pk__among=[node.pk, other.pk]).count() == 4
    assert Card.objects.exclude(pk__among=[first.pk]).count() == 3
