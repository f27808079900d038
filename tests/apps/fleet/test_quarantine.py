"""Cards whose memory an ended attempt still holds: told, passed over, alerted, released (AGENT-06)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from agent.contract.codes import Code
from agent.contract.messages import CardHolder, HeartbeatRequest, HeartbeatUnchanged
from apps.agentlink import services as agentlink
from apps.core import ticks
from apps.core.errors import Conflict, Forbidden, Invalid
from apps.fleet.models import Card, Node
from apps.fleet.services import record_heartbeat, release_cards, released_cards
from apps.ops.conditions import read_cards
from apps.tenants.models import User
from apps.tenants.scope import viewer_of
from apps.workloads.models import Task
from tests import factories
from tests.apps.agentlink.conftest import heartbeat_of
from tests.factories import NOW

pytestmark = [pytest.mark.req("AGENT-06"), pytest.mark.django_db(transaction=True)]
HELD = [CardHolder(4711, 9000, "task-gone"), CardHolder(0, None)]


@pytest.fixture
def node() -> Node:
    return factories.make_node(cards=2)


def message_of(node: Node, sequence: int, *quarantined: int, **fields: Any) -> HeartbeatRequest:
    message = heartbeat_of(node, sequence=sequence, **fields)
    for index in quarantined:
        message.cards[index] = msgspec.structs.replace(
            message.cards[index], quarantined=True, held_by=list(HELD)
        )
    return message


def beat(node: Node, sequence: int, *quarantined: int, at: Any = NOW) -> None:
    message = message_of(node, sequence, *quarantined)
    record_heartbeat(node=node, request=message, address="127.0.0.1", now=at)


def card_of(node: Node, index: int = 0) -> Card:
    return Card.objects.get(node=node, index=index)


def place(**fields: Any) -> Task:
    task = factories.make_task(**fields)
    ticks.run_tick("scheduling.place", NOW)
    task.refresh_from_db()
    return task


def test_what_the_agent_says_is_kept_and_ends_with_its_word(node: Node) -> None:
    beat(node, 1, 0)
    beat(node, 2, 0, at=NOW + timedelta(seconds=5))
    held = card_of(node)
    assert held.quarantined_at == NOW
    assert held.held_by == [
        {"pid": 4711, "used_mb": 9000, "task_id": "task-gone"},
        {"pid": 0, "used_mb": None, "task_id": ""},
    ]
    assert card_of(node, 1).quarantined_at is None
    beat(node, 3)
    assert (card_of(node).quarantined_at, card_of(node).held_by) == (None, [])


def test_nothing_is_placed_there_until_it_is_over(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(node, 1, 0)
    beside = place(estimated_gpu_memory_mb=100)
    assert beside.claims.get().cards.get().card.index == 1
    waits = place(gpu_required=2)
    assert [why["code"] for why in waits.refusals] == [Code.INSUFFICIENT_RESOURCES, Code.CARD_QUARANTINED]
    assert waits.refusals[1]["params"] == {"nodes": 1, "cards": 1}
    kicked: list[str] = []
    monkeypatch.setattr("apps.fleet.services.heartbeats.hints.kick", kicked.append)
    beat(node, 2)
    assert kicked == ["scheduling.place"]


def test_it_is_an_alert_with_the_owners_pid_while_it_lasts(node: Node) -> None:
    beat(node, 1, 1)
    (found,) = read_cards(NOW, NOW)
    assert (found.code, found.params) == (
        "card_held",
        {"node": node.name, "card": card_of(node, 1).uuid, "pid": 4711, "used_mb": 9000},
    )
    beat(node, 2)
    assert read_cards(NOW, NOW) == []


def test_an_operators_release_is_told_to_the_agent_until_it_follows(
    node: Node, operator: User, member: User
) -> None:
    beat(node, 1, 0, 1)
    with pytest.raises(Forbidden):
        release_cards(actor=viewer_of(member), node=node, now=NOW)
    with pytest.raises(Invalid):
        release_cards(actor=viewer_of(operator), node=node, uuid="GPU-none", now=NOW)
    assert release_cards(actor=viewer_of(operator), node=node, uuid=card_of(node).uuid, now=NOW) == 1
    assert released_cards(node) == [card_of(node).uuid]
    beat(node, 2, 0, 1)
    assert card_of(node).quarantined_at == NOW  # its agent has not followed yet
    assert released_cards(node) == [card_of(node).uuid]
    answer = agentlink.heartbeat(node, message_of(node, 2, 0, 1), address="127.0.0.1", now=NOW)
    assert answer.released_cards == [card_of(node).uuid]
    again = message_of(node, 2, 0, 1, desired_hash=answer.desired_hash)
    unchanged = agentlink.heartbeat(node, again, address="127.0.0.1", now=NOW)
    assert isinstance(unchanged, HeartbeatUnchanged) and unchanged.released_cards == answer.released_cards
    beat(node, 3, 1)
    assert released_cards(node) == []
    beat(node, 4, 0)  # held anew: the former release says nothing of that
    assert released_cards(node) == []
    with pytest.raises(Conflict):
        release_cards(actor=viewer_of(operator), node=node, uuid=card_of(node, 1).uuid, now=NOW)


def test_people_see_it_where_they_run_nodes_only(
    node: Node, api_client: Callable[..., APIClient], operator: User, member: User, client: Client
) -> None:
    beat(node, 1, 0)
    address = f"/api/v1/nodes/{node.public_id}"
    shown = api_client(operator).get(address).json()["cards"][0]
    assert shown["held_by"][0]["pid"] == 4711 and shown["quarantined_at"] is not None
    assert "held_by" not in api_client(member).get(address).json()["cards"][0]
    client.force_login(operator)
    page = client.get(reverse("admin:fleet_node_change", args=[node.pk])).content.decode()
    assert "4711: 9000 MB (task-gone)" in page
    assert api_client(member).post(f"{address}/release-cards", {}, format="json").status_code == 403
    told = api_client(operator).post(f"{address}/release-cards", {}, format="json")
    assert (told.status_code, told.json()["released"]) == (202, 1)
    assert told.json()["next"]["code"] == "cards_released"
    again = api_client(operator).post(f"{address}/release-cards", {"card": "GPU-none"}, format="json")
    assert (again.status_code, again.json()["errors"][0]["field"]) == (400, "card")
    client.post(reverse("admin:fleet_node_release_cards", args=[node.pk]))
    assert card_of(node).release_asked_at is not None
