"""The overview's figures: what is counted, what is late, and that its size does not grow with the rows."""

from datetime import timedelta
from typing import Any

from agent.contract.states import State
from apps.console.dashboard import build_overview
from apps.core.models import TickRun
from apps.usage.models import UsageRecord
from tests import factories
from tests.factories import NOW


def test_nothing_is_nothing(db: None) -> None:
    overview = build_overview(NOW)
    assert overview["nodes"]["total"] == 0
    assert overview["states"] == []
    assert overview["queue"] == {"length": 0, "tasks": []}
    assert overview["last_hour"] == {"requests": 0, "failed": 0, "tokens_in": 0, "tokens_out": 0}


def test_nodes_states_and_queue(db: None) -> None:
    factories.make_node(cards=2)
    factories.make_node(cards=1, last_seen_at=NOW - timedelta(hours=1))
    factories.make_node(cards=0, last_seen_at=None, cordoned=True)
    group = factories.make_group(state=State.RUNNING)
    factories.make_task(group, state=State.RUNNING)
    urgent = factories.make_group(priority=5)
    refusals = [{"code": "node_offline", "params": {"nodes": 2}}]
    factories.make_task(factories.make_group(), reason_code="insufficient_resources")
    factories.make_task(urgent, refusals=refusals, reason_code="insufficient_resources")
    overview = build_overview(NOW)
    assert {name: overview["nodes"][name] for name in ("total", "online", "cordoned", "cards")} == {
        "total": 3,
        "online": 1,
        "cordoned": 1,
        "cards": 3,
    }
    assert {state["word"]: state["count"] for state in overview["states"]} == {"pending": 2, "running": 1}
    assert overview["queue"]["length"] == 2
    first = overview["queue"]["tasks"][0]
    assert first["tenant"] == urgent.tenant.slug
    assert first["refusals"] == ["2 node(s): offline."]


def test_deleted_groups_are_not_counted(db: None) -> None:
    factories.make_task(factories.make_group(deleted_at=NOW))
    overview = build_overview(NOW)
    assert overview["states"] == []
    assert overview["queue"]["length"] == 0


def test_last_hour_counts_by_the_begin(db: None) -> None:
    for number, (ago, ending) in enumerate([(1, "completed"), (59, "client_gone"), (61, "completed")]):
        UsageRecord.objects.create(
            request_id=f"r-{number}",
            started_at=NOW - timedelta(minutes=ago),
            path="/v1/chat/completions",
            ending=ending,
            http_status=200,
            prompt_tokens=10,
            completion_tokens=3,
        )
    assert build_overview(NOW)["last_hour"] == {
        "requests": 2,
        "failed": 1,
        "tokens_in": 20,
        "tokens_out": 6,
    }


def test_a_loop_that_stopped_running_is_late(db: None, settings: Any) -> None:
    settings.SCHEDULING_PERIOD_S, settings.LOOP_LATE_SLACK_S = 1.0, 4.0
    ended = {"fresh": 6, "old": 8}
    seen = {}
    for name, age_s in ended.items():
        TickRun.objects.update_or_create(
            name="scheduling.place",
            defaults={"outcome": "done", "finished_at": NOW - timedelta(seconds=age_s)},
        )
        loops = {loop["name"]: loop for loop in build_overview(NOW)["loops"]}
        seen[name] = loops["scheduling.place"]["late"]
    assert seen == {"fresh": False, "old": True}
    TickRun.objects.all().delete()
    never = {loop["name"]: loop for loop in build_overview(NOW)["loops"]}["scheduling.place"]
    assert (never["late"], never["age_s"]) == (False, None)


def test_statements_do_not_grow_with_the_rows(db: None, django_assert_max_num_queries: Any) -> None:
    for _ in range(12):
        factories.make_node()
        factories.make_task(factories.make_group())
    with django_assert_max_num_queries(8):
        build_overview(NOW)
