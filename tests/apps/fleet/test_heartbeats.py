"""Heartbeats: who speaks for a node, what is written, and whose clock counts."""

from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.messages import (
    CardHolder,
    CardReport,
    DialTarget,
    DoorTarget,
    EngineReport,
    HeartbeatRequest,
    HostReport,
)
from agent.contract.states import RuntimeKind
from apps.alerts.models import Alert
from apps.core import versions
from apps.core.errors import Invalid, Refusal
from apps.fleet import selectors, services
from apps.fleet.models import Card, Liveness, Node, Port
from tests import factories
from tests.examples import examples

pytestmark = pytest.mark.django_db

NOW = factories.NOW


def card(index=0, **fields):
    base = {"uuid": f"GPU-{index}", "index": index, "vendor": "nvidia", "model": "L40S"}
    return CardReport(**{**base, "vram_total_mb": 46068, "vram_used_mb": 1000, **fields})


def beat(node, sequence=1, *, now=NOW, address="127.0.0.1", **fields):
    base = {
        "incarnation": "run-a",
        "started_at": NOW.timestamp() - 60,
        "sequence": sequence,
        "desired_hash": "",
        "sent_at": now.timestamp(),
        "machine_id": node.machine_id,
        "runtime": RuntimeKind.DOCKER,
        "host": HostReport(cpu_count=16, memory_total_mb=65536),
        "dial": DialTarget(host="127.0.0.1"),
        "cards": [card()],
        "engines": [EngineReport(name="vllm", version="0.9")],
        "agent_version": "0.1.0",
    }
    request = HeartbeatRequest(**{**base, **fields})
    row = Node.objects.get(pk=node.pk)
    return services.record_heartbeat(node=row, request=request, address=address, now=now)


@pytest.fixture
def node():
    """A node that has joined and never spoken."""
    return factories.make_node(cards=0, last_seen_at=None, incarnation="", runtime="", engines=[], dial={})


def live(node):
    return Liveness.objects.get(node=node)


@pytest.mark.req("AGENT-16")
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "127.0.0.1"),  # any machine near the server
        ("169.254.169.254", "127.0.0.1"),
        ("db.internal", "127.0.0.1"),
        ("127.0.0.1", "10.1.2.3"),  # the server's own loopback, said by a node elsewhere
        ("localhost", "10.1.2.3"),
        ("::1", "fd00::5"),
        ("127.0.0.1", ""),  # a proxy that hides whence it came
    ],
)
def test_engines_are_dialled_directly_on_the_servers_own_loopback_only(node, host, address):
    with pytest.raises(Invalid) as refused:
        beat(node, dial=DialTarget(host=host), address=address)
    (error,) = refused.value.errors
    assert (error.field, error.code, error.value) == ("dial.host", "dial_not_local", host)
    assert Node.objects.get(pk=node.pk).dial == {}


@pytest.mark.req("AGENT-16")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_node_on_the_servers_machine_is_dialled_directly(node, host, address):
    assert beat(node, dial=DialTarget(host=host), address=address).accepted


@pytest.mark.req("AGENT-16")
def test_a_node_elsewhere_comes_through_its_door(node):
    door = DoorTarget(host="10.1.2.3", port=4433, certificate_sha256="0" * 64)
    assert beat(node, dial=door, address="10.1.2.3").accepted


@pytest.mark.req("AGENT-01")
def test_the_first_one_tells_all(node):
    outcome = beat(node)

    row = Node.objects.get(pk=node.pk)
    assert outcome.accepted and outcome.newer_incarnation and not outcome.superseded
    assert (row.runtime, row.cpu_count, row.memory_total_mb) == ("docker", 16, 65536)
    assert row.engines == [{"name": "vllm", "version": "0.9", "image": None}]
    assert row.dial == {"kind": "direct", "host": "127.0.0.1"}
    stored = Card.objects.get(node=node)
    assert (stored.uuid, stored.model, stored.vram_total_mb, stored.present) == ("GPU-0", "L40S", 46068, True)
    assert stored.sample.vram_used_mb == 1000
    assert live(node).last_seen_at == NOW


def test_a_quiet_one_writes_liveness_alone(node):
    beat(node, 1)
    with CaptureQueriesContext(connection) as seen:
        beat(node, 2, now=NOW + timedelta(seconds=5))
    writes = [q["sql"] for q in seen if q["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]
    assert len(writes) == 1 and "fleet_liveness" in writes[0]


@pytest.mark.req("AGENT-02")
def test_older_and_repeated_ones_of_a_run_are_ignored(node):
    beat(node, 5)
    for sequence in (5, 4, 0):
        outcome = beat(node, sequence, now=NOW + timedelta(seconds=9), cards=[])
        assert not outcome.accepted and not outcome.superseded
    assert live(node).last_seen_at == NOW
    assert Card.objects.get(node=node).present


@pytest.mark.req("AGENT-02")
def test_the_newest_run_of_a_machine_wins_at_once_and_the_older_is_ignored(node):
    beat(node, 7)
    Liveness.objects.filter(node=node).update(report_sequence=12)
    newer = beat(node, 1, incarnation="run-b", started_at=NOW.timestamp())
    assert newer.accepted and newer.newer_incarnation
    assert (live(node).incarnation, live(node).heartbeat_sequence, live(node).report_sequence) == (
        "run-b",
        1,
        0,
    )

    older = beat(node, 8, now=NOW + timedelta(seconds=5), cards=[])
    assert older.superseded and not older.accepted
    assert live(node).incarnation == "run-b" and live(node).last_seen_at == NOW
    assert Card.objects.get(node=node).present


@pytest.mark.req("AGENT-02")
def test_a_clock_that_was_set_back_locks_no_machine_out(node, settings):
    beat(node, 7)
    back = {"incarnation": "run-b", "started_at": NOW.timestamp() - 9999}
    assert beat(node, 1, now=NOW + timedelta(seconds=settings.NODE_SILENT_S), **back).superseded
    later = beat(node, 2, now=NOW + timedelta(seconds=settings.NODE_SILENT_S + 1), **back)
    assert later.accepted and later.newer_incarnation


@pytest.mark.req("AGENT-02")
def test_another_machine_with_the_credential_is_refused_with_an_alert(node, caplog):
    beat(node)
    for times in (1, 2):
        with pytest.raises(Refusal) as refused:
            beat(node, 50, machine_id="stolen", now=NOW + timedelta(minutes=times), incarnation="thief")
        assert (refused.value.code, refused.value.status) == ("machine_mismatch", 403)
        alert = Alert.objects.get(object_id=node.public_id)
        assert (alert.code, alert.times, alert.last_at) == (
            "machine_mismatch",
            times,
            NOW + timedelta(minutes=times),
        )
    assert alert.opened_at == NOW + timedelta(minutes=1)
    assert live(node).incarnation == "run-a" and live(node).last_seen_at == NOW
    assert "another machine" in caplog.text


@pytest.mark.req("AGENT-01")
@pytest.mark.parametrize("off_s", [-600, 600, 59, 0])
def test_age_is_by_the_servers_clock_and_skew_is_only_a_warning(node, off_s):
    outcome = beat(node, sent_at=NOW.timestamp() + off_s)
    assert outcome.accepted and outcome.skew_s == off_s
    beat(node, sequence=2, sent_at=NOW.timestamp() + off_s)
    assert [alert.times for alert in Alert.objects.filter(object_id=node.public_id)] == [1] * (
        abs(off_s) > 60
    )
    assert selectors.is_online(live(node).last_seen_at, NOW + timedelta(seconds=29))
    assert live(node).clock_skew_s == off_s


def test_a_time_that_is_no_number_is_no_answer(node):
    assert beat(node, sent_at=float("inf")).skew_s is None
    assert live(node).clock_skew_s is None


def test_a_node_that_comes_back_is_simply_alive(node):
    beat(node, 1)
    Liveness.objects.filter(node=node).update(declared_lost_at=NOW)
    before = Node.objects.filter(pk=node.pk).values().get()
    outcome = beat(node, 2, now=NOW + timedelta(hours=1))
    assert outcome.accepted and not outcome.newer_incarnation
    assert live(node).declared_lost_at is None
    assert Node.objects.filter(pk=node.pk).values().get() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("incarnation", ""),
        ("incarnation", "r" * 65),
        ("incarnation", "a\0"),
        ("started_at", float("inf")),
        ("sequence", -1),
        ("sequence", 2**63),
    ],
)
def test_a_run_that_can_not_be_told_apart_is_refused(field, value, node):
    with pytest.raises(Invalid) as refused:
        beat(node, **{field: value})
    assert [e.field for e in refused.value.errors] == [field]
    assert live(node).last_seen_at is None


def test_an_unusable_port_range_leaves_the_present_one(node):
    beat(node, 1, port_range=(30000, 30100))
    for odd in ((0, 10), (5000, 4000), (60000, 70000)):
        beat(node, live(node).heartbeat_sequence + 1, port_range=odd)
    row = Node.objects.get(pk=node.pk)
    assert (row.port_first, row.port_last) == (30000, 30100)


def test_a_new_address_is_told_to_the_gateway_and_nothing_else_is(node):
    beat(node, 1)
    before = versions.read()
    beat(node, 2, cards=[card(vram_used_mb=9000)])
    assert versions.read() == before
    beat(node, 3, now=NOW + timedelta(seconds=15), dial=DialTarget(host="127.0.0.2"))
    assert versions.read() == before + 1


def test_a_node_whose_address_or_clock_changes_each_time_makes_few_tables(node, settings):
    settings.NODE_FOLLOW_S, settings.DOOR_SKEW_STEP_S = 10.0, 20.0
    before = versions.read()
    for number in range(13):  # each second, for 12 s
        at = NOW + timedelta(seconds=number)
        odd = DoorTarget("127.0.0.1", 7000 + number, "cd" * 32)
        beat(node, number + 1, now=at, dial=odd, sent_at=at.timestamp() + 100 * number)
    assert versions.read() == before + 2
    assert Node.objects.get(pk=node.pk).dial["port"] == 7010
    assert live(node).door_skew_s == 1000.0
    late = NOW + timedelta(seconds=30)  # what did not count is not lost: it is said again
    beat(node, 14, now=late, dial=odd, sent_at=late.timestamp())
    assert Node.objects.get(pk=node.pk).dial["port"] == 7012 and live(node).door_skew_s == 0.0


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_decodable_heartbeat_is_recorded_or_refused_in_words(data):
    node = factories.make_node(cards=1, last_seen_at=None)
    number = st.integers(-(2**63), 2**63 - 1)
    text = st.text(max_size=400)
    reports = st.builds(
        CardReport,
        uuid=text,
        index=number,
        vendor=text,
        model=text,
        vram_total_mb=st.none() | number,
        vram_used_mb=st.none() | number,
        temperature_c=st.none() | number,
        utilization_percent=st.none() | number,
        driver_version=st.none() | text,
        compute_capability=st.none() | text,
        processes=st.none() | st.lists(st.builds(CardHolder, pid=number, task_id=text, name=text)),
        foreign_mb=st.none() | number,
        link_group=st.none() | number,
        pcie_root=text,
    )
    fields = data.draw(
        st.fixed_dictionaries(
            {
                "incarnation": st.text(min_size=1, max_size=70),
                "started_at": st.floats(allow_nan=False, allow_infinity=False),
                "sent_at": st.floats(allow_nan=False, allow_infinity=False),
                "sequence": number,
                "host": st.builds(HostReport, cpu_count=number, memory_total_mb=number),
                "cards": st.lists(reports, max_size=4),
                "engines": st.lists(st.builds(EngineReport, name=text), max_size=3),
                "volume_prefixes": st.none() | st.lists(text, max_size=3),
                "images": st.none() | st.lists(text, max_size=3),
                "port_range": st.tuples(number, number),
                "agent_version": text,
            }
        )
    )
    try:
        assert beat(node, fields.pop("sequence"), **fields).accepted
    except Invalid as refused:
        assert {e.field for e in refused.errors} <= {"incarnation", "sequence"}
    assert msgspec.json.encode(Node.objects.get(pk=node.pk).engines)


@pytest.mark.req("SVC-12", "AGENT-07")
def test_ports_that_strangers_hold_are_kept_for_placing(node, monkeypatch):
    Port.objects.create(node=node, number=20001, owner="task-a", attempt=1, container_port=80)
    beat(node, 1)
    kicked = []
    monkeypatch.setattr("apps.fleet.services.heartbeats.hints.kick", kicked.append)
    beat(node, 2, ports_in_use=[20005, 20001, 20000, 70000, 0, -1])
    assert live(node).foreign_ports == [20000, 20005]
    assert {20000, 20001, 20005} <= selectors.placement_rows()[0].ports
    beat(node, 3, ports_in_use=[20000, 20001, 20005])
    beat(node, 4)
    assert live(node).foreign_ports == []
    assert kicked == ["scheduling.place"] * 2
