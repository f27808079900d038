"""Which conditions become alerts, and which only look like them (OPS-09)."""

import time
from datetime import timedelta

import pytest

from agent.contract.states import State
from apps.alerts.models import Alert
from apps.core import leases
from apps.core.models import TickRun
from apps.fleet.models import Card, Liveness
from apps.ops import conditions, loop
from apps.usage.models import UsageHost
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09")]
LONG_AGO = NOW - timedelta(hours=1)


def watch(now=NOW, looking_since=LONG_AGO):
    """One run of the loop that has been looking for an hour."""
    if looking_since is not None:
        detail = {"looking_since": looking_since.isoformat()}
        TickRun.objects.update_or_create(
            name=loop.NAME,
            defaults={"started_at": now - timedelta(seconds=1), "finished_at": now, "detail": detail},
        )
    held = leases.acquire(loop.NAME, "test", 30)
    assert held is not None
    try:
        return loop.watch(held, now)
    finally:
        held.release()


def open_codes() -> set[str]:
    return set(Alert.objects.filter(closed_at__isnull=True).values_list("code", flat=True))


@pytest.fixture(autouse=True)
def loops_run():
    """Every loop ran just now."""
    for name in conditions.REGISTRY:
        TickRun.objects.create(name=name, outcome="done", started_at=NOW, finished_at=NOW)


def heard(node, **values):
    Liveness.objects.filter(node=node).update(**{"last_seen_at": NOW, "declared_lost_at": None, **values})


def test_nothing_is_wrong():
    heard(factories.make_node(cards=1))
    watch()
    assert not Alert.objects.exists()


def test_a_lost_node_until_it_is_back():
    lost, other = factories.make_node(name="a"), factories.make_node(name="b")
    heard(other)
    heard(lost, last_seen_at=LONG_AGO, declared_lost_at=NOW)
    watch()
    (alert,) = Alert.objects.all()
    assert (alert.code, alert.object_id, alert.params["node"]) == ("node_lost", lost.public_id, "a")
    heard(lost)
    watch()
    assert open_codes() == set()


def test_all_silent_at_once_is_a_fault_of_ours_and_no_nodes():
    for name in ("a", "b"):
        heard(factories.make_node(name=name), last_seen_at=NOW - timedelta(seconds=60))
    watch(looking_since=NOW - timedelta(seconds=10))  # just begun to listen: nobody had their turn
    assert open_codes() == set()
    watch()
    assert open_codes() == {"all_nodes_silent"}


def test_a_closed_door_and_a_card_that_left():
    node = factories.make_node(cards=2)
    heard(node, door_state="closed", door_reason="door_timed_out")
    Card.objects.filter(node=node, index=0).update(present=False)
    watch()
    assert open_codes() == {"node_door_closed", "card_lost"}
    heard(node, last_seen_at=LONG_AGO, declared_lost_at=NOW, door_state="closed")
    watch()
    assert open_codes() == {"node_lost"}  # the rest can't be seen from here


def test_loops_that_fail_or_stand_still():
    TickRun.objects.filter(name="scheduling.place").update(failures_in_a_row=3)
    TickRun.objects.filter(name="recovery.sweep").update(finished_at=NOW - timedelta(seconds=60))
    TickRun.objects.filter(name="streams.tidy").delete()  # never ran; its first period isn't over
    watch(looking_since=NOW - timedelta(seconds=100))
    found = set(Alert.objects.values_list("code", "object_id"))
    assert found == {("loop_failing", "scheduling.place"), ("loop_late", "recovery.sweep")}


def test_after_a_pause_of_ours_no_loop_is_late():
    TickRun.objects.exclude(name=loop.NAME).update(finished_at=LONG_AGO)
    TickRun.objects.filter(name=loop.NAME).update(
        started_at=LONG_AGO, detail={"looking_since": LONG_AGO.isoformat()}
    )
    watch(looking_since=None)
    assert open_codes() == set()


def test_tasks_that_wait_for_long(operator):
    group = factories.make_group(factories.make_tenant(), operator)
    task = factories.make_task(group, state=State.PENDING)
    type(task).objects.filter(pk=task.pk).update(state_since=NOW - timedelta(seconds=599))
    watch()
    assert open_codes() == set()
    watch(now=NOW + timedelta(seconds=2))
    assert "tasks_waiting" in open_codes()


def test_usage_that_does_not_become_rows_on_any_host():
    old, fresh = NOW - timedelta(seconds=300), NOW - timedelta(seconds=5)
    UsageHost.objects.create(name="behind", updated_at=fresh, oldest_at=old)
    UsageHost.objects.create(name="busy", updated_at=fresh, oldest_at=fresh)
    UsageHost.objects.create(name="idle", updated_at=fresh)  # nothing waits
    UsageHost.objects.create(name="silent", updated_at=old)  # nobody knows
    UsageHost.objects.create(name="both", updated_at=old, oldest_at=old)
    watch()
    assert set(Alert.objects.values_list("code", "object_id")) == {
        ("usage_behind", "behind"),
        ("usage_unheard", "silent"),
        ("usage_unheard", "both"),
    }
    UsageHost.objects.update(updated_at=fresh, oldest_at=None)
    watch()
    assert open_codes() == set()


def test_after_a_pause_of_ours_no_host_is_silent():
    """As when the database was away: nobody could say anything."""
    UsageHost.objects.create(name="a", updated_at=LONG_AGO)
    watch(looking_since=NOW - timedelta(seconds=30))
    assert open_codes() == set()


def test_a_topic_that_can_not_be_read_leaves_its_alerts_alone(monkeypatch):
    node = factories.make_node(cards=1)
    heard(node, last_seen_at=LONG_AGO, declared_lost_at=NOW)
    watch()
    began = time.monotonic()

    def broken(now, since):
        raise RuntimeError(began)

    topics = (conditions.Topic(conditions.TOPICS[0].codes, broken), *conditions.TOPICS[1:])
    monkeypatch.setattr(conditions, "TOPICS", topics)
    heard(node)
    assert watch()["unread"] == list(topics[0].codes)
    assert open_codes() == {"node_lost"}


@pytest.mark.req("RECOV-02")
def test_tasks_that_wait_since_too_much_is_lost_at_once(settings):
    settings.EVICTIONS_PER_MINUTE = 20
    sweep = TickRun.objects.filter(name="recovery.sweep")
    sweep.update(detail={"held_back": 7})
    watch()
    alert = Alert.objects.get(code="evictions_held_back", closed_at__isnull=True)
    assert alert.params == {"tasks": 7, "max": 20}
    sweep.update(detail={"held_back": 0})
    watch(NOW + timedelta(seconds=10))
    assert "evictions_held_back" not in open_codes()
