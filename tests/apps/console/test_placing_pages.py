"""The queue and the cluster map: full, filtered, empty, and seen by operators alone (SCHED-10, SHARE-02)."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation

from agent.contract.states import State
from apps.workloads.models import Reservation
from tests import factories

pytestmark = pytest.mark.django_db

QUEUE = reverse("admin:workloads_task_queue")
MAP = reverse("admin:fleet_card_map")


def said(client, path, **query):
    answer = client.get(path, query)
    assert answer.status_code == 200
    return answer.content.decode()


def statements(client, path):
    client.get(path)  # the first one also keeps the session
    with CaptureQueriesContext(connection) as seen:
        assert client.get(path).status_code == 200
    return len(seen)


@pytest.mark.req("UI-04")
@pytest.mark.parametrize(("path", "name", "beside"), [(QUEUE, "Queue", "task"), (MAP, "Cluster map", "card")])
def test_its_own_name_stands_above_it_and_alone_is_marked(operator_client, path, name, beside):
    answer = operator_client.get(path)
    assert answer.context["content_title"].strip() == name
    groups = answer.context["sidebar_navigation"]
    marked = [str(item["link"]) for group in groups for item in group["items"] if item["active"]]
    assert marked == [path], f"the list of every {beside} is another page"
    of_list = operator_client.get(path.rsplit("/", 2)[0] + "/").context["sidebar_navigation"]
    assert path not in [str(item["link"]) for group in of_list for item in group["items"] if item["active"]]


@pytest.mark.parametrize("path", [QUEUE, MAP])
def test_nobody_but_operators_sees_it(path):
    assert Client().get(path).status_code == 302
    member, staff = Client(), Client()
    member.force_login(factories.make_member())
    staff.force_login(factories.make_user(is_staff=True))
    assert member.get(path).status_code == 302 and staff.get(path).status_code == 403


@pytest.fixture
def waiting():
    """Three who wait, in order: the important one, then the older one."""
    tenant = factories.make_tenant("waiting-ones")
    short = [{"code": "vram_short", "params": {"nodes": 1, "wanted_mb": 22528, "free_mb": 18637}}]
    made = {}
    for name, priority, gpu_type in (("old", 0, "L20"), ("young", 0, ""), ("urgent", 9, "L20")):
        group = factories.make_group(tenant, name=name, priority=priority)
        made[name] = factories.make_task(
            group,
            name=f"<{name}>",
            gpu_type=gpu_type,
            estimated_gpu_memory_mb=22528,
            reason_code="insufficient_resources",
            reason_params={"nodes": 1},
            refusals=short,
        )
    return made


@pytest.mark.req("SCHED-02", "SCHED-10")
def test_the_queue_tells_position_tenant_need_and_the_nearest_miss(operator_client, waiting):
    text = said(operator_client, QUEUE)
    places = [text.index(f"&lt;{name}&gt;") for name in ("urgent", "old", "young")]
    assert places == sorted(places) and "<urgent>" not in text
    assert (
        "3 tasks wait." in text and "waiting-ones" in text and "1 card L20, 22.0 GB" in " ".join(text.split())
    )
    assert "18.2 GB free on a card, 22.0 GB needed" in text and "priority 9" in text


def test_the_queue_is_filtered_by_type_and_keeps_positions(operator_client, waiting):
    text = said(operator_client, QUEUE, type="-")
    assert "&lt;young&gt;" in text and "&lt;old&gt;" not in text
    assert "data-position>3<" in text
    none = said(operator_client, QUEUE, type="H200")
    assert "Nothing waits for such a card." in none


def test_kept_room_is_told(operator_client, waiting):
    now = timezone.now()
    node = factories.make_node("rack-1")
    Reservation.objects.create(
        task=waiting["old"], node=node, created_at=now, until=now + timedelta(seconds=60)
    )
    assert "Room on node rack-1 is kept for it until" in said(operator_client, QUEUE)


def test_an_empty_queue_says_so_and_leads_on(operator_client):
    text = said(operator_client, QUEUE)
    assert "Nothing waits: every task that is to run has a place." in text and MAP in text


def test_a_long_queue_comes_in_pages_and_costs_no_more(operator_client, waiting):
    few = statements(operator_client, QUEUE)
    group = factories.make_group(factories.make_tenant())
    for _ in range(60):
        factories.make_task(group)
    assert statements(operator_client, QUEUE) == few
    assert "Page 1 of 2" in said(operator_client, QUEUE)
    assert "data-position>63<" in said(operator_client, QUEUE, page="2")
    assert "Page 2 of 2" in said(operator_client, QUEUE, page="99")


@pytest.fixture
def fleet():
    """A node with a shared card, a sleeper's, one in quarantine, and one that does not answer."""
    now = timezone.now()
    acme, other = factories.make_tenant("acme"), factories.make_tenant("other")
    node = factories.make_node("rack-<1>", cards=4, now=now, last_seen_at=now, pool="east")
    cards = list(node.cards.order_by("index"))
    for number, (state, percent) in enumerate([(State.RUNNING, 35), (State.SLEEPING, 40)]):
        group = factories.make_group(acme, gpu_memory_utilization=percent)
        task = factories.make_task(
            group, node=node, attempt=1, state=state, ports=[{"container_port": 8000, "host_port": 0}]
        )
        factories.make_claim(task, node, percent=percent, cards=[cards[number]])
    cards[2].quarantined_at = now
    cards[2].save()
    cards[3].sample.delete()
    factories.make_node(
        "far", cards=0, now=now, last_seen_at=now - timedelta(days=1), pool="west", cordoned=True
    )
    return {"acme": acme, "other": other, "node": node}


@pytest.mark.req("SHARE-02", "SCHED-09")
def test_the_map_tells_each_card(operator_client, fleet):
    text = " ".join(said(operator_client, MAP).split())
    assert "rack-&lt;1&gt;" in text and "rack-<1>" not in text
    for words in ("35 %", "40 % asleep", "in quarantine", "memory unknown", "out of bounds for other"):
        assert words in text, words
    assert "out of bounds for acme" not in text
    assert "24.0 GB of 24.0 GB free" in text
    assert 'class="map-held" x="0" width="35"' in text and 'class="map-sleeping" x="0" width="40"' in text
    assert "several services may stand on one card" in text
    assert "offline" in text and "closed for new work" in text and "No cards" in text


def test_the_map_is_filtered_by_pool_and_type(operator_client, fleet):
    assert "far" not in said(operator_client, MAP, pool="east").split('id="map"')[1].split("map-nodes")[1]
    west = said(operator_client, MAP, pool="west")
    assert ">far</a>" in west and "rack-&lt;1&gt;</a>" not in west
    assert "No node is like that." in said(operator_client, MAP, model="H200")


def test_an_empty_map_says_how_to_begin(operator_client):
    text = said(operator_client, MAP)
    assert "No node has joined yet." in text and reverse("admin:fleet_node_changelist") in text


def test_many_nodes_come_in_pages_and_cost_no_more(operator_client, fleet):
    few = statements(operator_client, MAP)
    for _ in range(45):
        factories.make_node(cards=2)
    assert statements(operator_client, MAP) == few
    assert "Page 1 of 2" in said(operator_client, MAP)


@pytest.mark.req("UI-03")
def test_both_speak_chinese(operator_client, waiting, fleet):
    operator_client.cookies["django_language"] = "zh-hans"
    with translation.override("en"):
        assert "对以下租户不可用" in said(operator_client, MAP)
        assert "个任务在等待。" in said(operator_client, QUEUE)
