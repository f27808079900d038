"""Which replicas run on hot cards (GW-07), and what gateways say of backends."""

from datetime import timedelta

import pytest

from agent.contract.states import State
from apps.fleet.models import Card, CardSample, Liveness, Node
from apps.routing import gateways
from apps.routing.heat import hot_replicas
from apps.routing.load import BackendWord, Load
from apps.workloads.models import Claim, Task
from tests import factories
from tests.factories import NOW

pytestmark = pytest.mark.django_db


def make_running(node: Node, *celsius: int | None, attempt: int = 1) -> Task:
    """A replica with a card for each temperature; None = the driver doesn't tell."""
    task = factories.make_task(factories.make_group(), node=node, state=State.RUNNING, attempt=attempt)
    cards = []
    for degrees in celsius:
        number = Card.objects.count()
        card = Card.objects.create(
            node=node, uuid=f"GPU-{number}", index=number, vendor="nvidia", model="x", vram_total_mb=1
        )
        CardSample.objects.create(card=card, temperature_c=degrees, sampled_at=NOW)
        cards.append(card)
    factories.make_claim(task, node, cards=cards, incarnation="run")
    return task


@pytest.mark.req("GW-07")
def test_the_hottest_card_counts_and_what_nobody_told_is_not_hot() -> None:
    node = factories.make_node(cards=0)
    Liveness.objects.filter(node=node).update(last_seen_at=NOW)
    hot, cool, unknown = make_running(node, 70, 91, 85), make_running(node, 79), make_running(node, None)
    assert hot_replicas(80, NOW) == {hot.public_id: 91}
    assert hot_replicas(79, NOW) == {hot.public_id: 91, cool.public_id: 79}
    assert unknown.public_id not in hot_replicas(0, NOW)
    assert hot_replicas(80, NOW + timedelta(seconds=31)) == {}, "a silent node tells nothing"


@pytest.mark.req("GW-07")
def test_only_what_runs_there_now_is_hot() -> None:
    node = factories.make_node(cards=0)
    Liveness.objects.filter(node=node).update(last_seen_at=NOW)
    gone, moved, stopped = (make_running(node, 95) for _ in range(3))
    Claim.objects.filter(task=gone).update(released_at=NOW)
    Task.objects.filter(pk=moved.pk).update(attempt=2)
    Task.objects.filter(pk=stopped.pk).update(state=State.STOPPED)
    assert hot_replicas(80, NOW) == {}


@pytest.mark.req("GW-08")
def test_what_is_said_of_backends_is_read_as_it_was_said() -> None:
    words = {
        "task-a": BackendWord(state="open", failures=3, last_failure="refused"),
        "task-b": BackendWord(hot_c=90, running=1.0, waiting=0.0, told_at=7.5),
    }
    gateways.say("one", Load(version=1, backends=words), NOW)
    (source,) = gateways.read()
    assert source.load.backends == words
