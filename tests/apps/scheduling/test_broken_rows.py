"""A node's row that can not be read costs that node its new work, and nobody else anything (RECOV-05)."""

from typing import Any

import pytest

from apps.fleet.models import CardSample, Liveness, Node
from apps.scheduling.selectors import load_snapshot_of
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("RECOV-05")]


@pytest.mark.parametrize(
    ("table", "broken"),
    [
        (Node, {"labels": ["a"]}),
        (Node, {"engines": 7}),
        (Node, {"images": 7}),
        (Node, {"images": [["a"]]}),
        (Node, {"volume_prefixes": 7}),
        (Node, {"volume_prefixes": [7]}),
        (Liveness, {"foreign_ports": 7}),
        (Liveness, {"foreign_ports": ["a", None]}),
    ],
)
def test_a_node_that_can_not_be_read_stops_no_other(table: Any, broken: dict[str, Any], caplog: Any) -> None:
    bad, good = factories.make_node(), factories.make_node()
    whose = {"pk": bad.pk} if table is Node else {"node": bad}
    assert table.objects.filter(**whose).update(**broken) == 1
    assert [node.id for node in load_snapshot_of([], NOW).nodes] == [good.pk]
    assert f"node row {bad.pk}" in caplog.text


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize("broken", [[1], 7, {"task.1": "x"}])
def test_shares_of_a_card_that_can_not_be_read_are_not_told(broken: Any, caplog: Any) -> None:
    node = factories.make_node()
    factories.make_claim(factories.make_task(node=node, attempt=1), node)
    CardSample.objects.filter(card__node=node).update(owned_mb=broken)
    ((card,),) = [found.cards for found in load_snapshot_of([], NOW).nodes]
    assert [hold.measured_mb for hold in card.holds] == [None]
    assert f"card row {card.id}" in caplog.text
