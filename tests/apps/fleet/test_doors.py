"""The dial-back: which doors are dialled, what is found, and what becomes of it (AGENT-16)."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from agent.contract.codes import Code
from agent.contract.messages import DialTarget, DoorTarget
from apps.core import leases, ticks, versions
from apps.core.errors import Invalid
from apps.fleet import selectors
from apps.fleet.doors import (
    NO_DOOR,
    OTHER_CERTIFICATE,
    REFUSES,
    TIMED_OUT,
    UNREACHABLE,
    DoorRow,
    dial_doors,
)
from apps.fleet.models import Liveness, Node
from apps.fleet.services import record_heartbeat
from apps.fleet.services.doors import note_doors
from apps.tenants.models import User
from apps.workloads.models import Task
from tests import factories
from tests.apps.agentlink.conftest import heartbeat_of
from tests.factories import NOW
from tests.fakes.door import SECRET_SHA256, RunningDoor

pytestmark = [pytest.mark.req("AGENT-16"), pytest.mark.django_db(transaction=True)]


@contextmanager
def door_in_a_thread(folder: Path, port: int = 0) -> Iterator[RunningDoor]:
    """A door with a loop of its own, as an agent has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    door = RunningDoor(folder, port=port)
    do(door.__aenter__())
    try:
        yield door
    finally:
        do(door.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[RunningDoor]:
    with door_in_a_thread(tmp_path) as running:
        yield running


@pytest.fixture(autouse=True)
def short_dials(settings: Any) -> None:
    settings.DOOR_DIAL_TIMEOUT_S = 1.0


def dial_of(port: int, sha256: str) -> dict[str, Any]:
    return {"kind": "door", "host": "127.0.0.1", "port": port, "certificate_sha256": sha256}


def node_behind(door: RunningDoor, **fields: Any) -> Node:
    node = factories.make_node(dial=dial_of(door.port, door.sha256), **fields)
    Node.objects.filter(pk=node.pk).update(secret_sha256=SECRET_SHA256)
    node.refresh_from_db()
    return node


def row(port: int, sha256: str = "cd" * 32, secret_sha256: str = SECRET_SHA256, number: int = 1) -> DoorRow:
    return DoorRow(number, dial_of(port, sha256), secret_sha256)


@contextmanager
def listener(answer: bytes | None = None) -> Iterator[int]:
    """A port that is no door: it takes connections and says this, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


# --- dialling -------------------------------------------------------------------------------------


def test_what_is_found_at_an_address(door: RunningDoor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = int(taken.getsockname()[1])
    with listener() as silent, listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        rows = {
            "": row(door.port, door.sha256, number=1),
            OTHER_CERTIFICATE: row(door.port, number=2),
            REFUSES: row(door.port, door.sha256, "ef" * 32, number=3),
            TIMED_OUT: row(silent, number=4),
            UNREACHABLE: row(closed, number=5),
            "web": row(web, number=6),
            "unreadable": DoorRow(7, {"kind": "door"}, SECRET_SHA256),
        }
        found = dial_doors(list(rows.values()), timeout_s=1.0)
    assert found.pop(6) in (UNREACHABLE, NO_DOOR)
    assert found == {1: "", 2: OTHER_CERTIFICATE, 3: REFUSES, 4: TIMED_OUT, 5: UNREACHABLE}


def test_a_clock_that_is_far_off_closes_the_door(door: RunningDoor) -> None:
    door.wall = lambda: 1_000_000.0
    assert dial_doors([row(door.port, door.sha256)], timeout_s=1.0) == {1: REFUSES}


# --- which are due --------------------------------------------------------------------------------


def test_doors_of_online_nodes_are_due_when_unknown_or_old(door: RunningDoor) -> None:
    fresh = node_behind(door)
    recent, old, closed = (node_behind(door) for _ in range(3))
    factories.make_node()  # dialled directly
    node_behind(door, last_seen_at=NOW - timedelta(seconds=31))
    for node, ago_s, state in ((recent, 20, "open"), (closed, 61, "closed"), (old, 60, "open")):
        checked_at = NOW - timedelta(seconds=ago_s)
        Liveness.objects.filter(node=node).update(door_checked_at=checked_at, door_state=state)
    assert [due.node_id for due in selectors.doors_due(NOW)] == [fresh.pk, old.pk, closed.pk]


# --- the tick -------------------------------------------------------------------------------------


def run(now: Any = NOW) -> dict[str, Any]:
    done = ticks.run_tick("fleet.doors", now)
    assert done is not None
    return done


def live_of(node: Node) -> Liveness:
    return Liveness.objects.get(node=node)


def test_a_door_opens_closes_and_opens_again(door: RunningDoor, tmp_path: Path) -> None:
    with door_in_a_thread(tmp_path) as first:
        node, port = node_behind(first), first.port
        assert run() == {"dialled": 1, "opened": 1, "closed": 0}
        assert (live_of(node).door_state, live_of(node).door_since) == ("open", NOW)
        assert run() == {"dialled": 0, "opened": 0, "closed": 0}  # known a moment ago
        later = NOW + timedelta(seconds=30)
        Liveness.objects.update(last_seen_at=later)
        assert run(later) == {"dialled": 1, "opened": 0, "closed": 0}
        assert (live_of(node).door_since, live_of(node).door_checked_at) == (NOW, later)
    later += timedelta(seconds=30)
    Liveness.objects.update(last_seen_at=later)
    assert run(later) == {"dialled": 1, "opened": 0, "closed": 1}
    shut = live_of(node)
    assert (shut.door_state, shut.door_reason, shut.door_since) == ("closed", UNREACHABLE, later)
    with door_in_a_thread(tmp_path, port):
        later += timedelta(seconds=30)
        Liveness.objects.update(last_seen_at=later)
        assert run(later)["opened"] == 1
    assert (live_of(node).door_state, live_of(node).door_reason) == ("open", "")


def test_many_doors_are_dialled_in_portions_and_the_rest_is_left(
    door: RunningDoor, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DOOR_DIALS_AT_ONCE = 2
    for _ in range(5):
        node_behind(door)
    assert run()["opened"] == 5
    Liveness.objects.update(door_checked_at=None)
    settings.DOOR_CHECK_BUDGET_S = 0.0
    kicked: list[str] = []
    monkeypatch.setattr("apps.fleet.loop.hints.kick", kicked.append)
    assert run()["dialled"] == 0
    assert kicked == ["fleet.doors"]


def test_a_finding_about_a_former_address_is_dropped(door: RunningDoor) -> None:
    node = node_behind(door)
    (due,) = selectors.doors_due(NOW)
    Node.objects.filter(pk=node.pk).update(dial=dial_of(door.port + 1, door.sha256))
    lease = leases.acquire("fleet.doors", "me", 4)
    assert lease is not None
    changes = note_doors(lease=lease, dialled=[due], found={node.pk: ""}, now=NOW)
    assert (changes.opened, live_of(node).door_state) == (0, "unknown")


def test_an_overtaken_run_writes_nothing(door: RunningDoor) -> None:
    node = node_behind(door)
    due = selectors.doors_due(NOW)
    lease = leases.acquire("fleet.doors", "me", 4)
    assert lease is not None
    lease.release()
    leases.acquire("fleet.doors", "other", 4)
    with pytest.raises(leases.LeaseLost):
        note_doors(lease=lease, dialled=due, found={node.pk: ""}, now=NOW)
    assert live_of(node).door_state == "unknown"


# --- heartbeats -----------------------------------------------------------------------------------

TARGET = DoorTarget(host="127.0.0.1", port=7443, certificate_sha256="cd" * 32)


def test_another_door_or_run_is_unknown_until_it_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    kicked: list[str] = []
    monkeypatch.setattr("apps.fleet.services.doors.hints.kick", kicked.append)
    node = factories.make_node()

    def beat(sequence: int, **changes: Any) -> str:
        message = heartbeat_of(node, sequence=sequence, **{"dial": TARGET, **changes})
        at = NOW + timedelta(seconds=15 * sequence)
        record_heartbeat(node=node, request=message, address="127.0.0.1", now=at)
        state = str(live_of(node).door_state)
        Liveness.objects.update(door_state="open")
        return state

    assert beat(1) == "unknown"
    assert beat(2) == "open"
    other = DoorTarget(host="127.0.0.1", port=7444, certificate_sha256="cd" * 32)
    assert beat(3, dial=other) == "unknown"
    assert beat(1, dial=other, incarnation="run-2", started_at=2.0) == "unknown"
    assert beat(2, dial=other, incarnation="run-2", started_at=2.0) == "open"
    # The last two kicks are ours alone: a node without a door needs no dial-back.
    assert kicked.count("fleet.doors") == 3
    beat(3, dial=DialTarget("127.0.0.1"), incarnation="run-2", started_at=2.0)
    assert kicked.count("fleet.doors") == 3


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (DoorTarget("127.0.0.1", 0, "cd" * 32), "dial.port"),
        (DoorTarget("127.0.0.1", 65536, "cd" * 32), "dial.port"),
        (DoorTarget("127.0.0.1", 7443, "CD" * 32), "dial.certificate_sha256"),
        (DoorTarget("127.0.0.1", 7443, ""), "dial.certificate_sha256"),
        (DoorTarget("", 7443, "cd" * 32), "dial.host"),
        (DoorTarget("host/path", 7443, "cd" * 32), "dial.host"),
        (DoorTarget("user@host", 7443, "cd" * 32), "dial.host"),
        (DialTarget("host name"), "dial.host"),
    ],
)
def test_an_address_that_can_not_be_dialled_is_refused(target: Any, field: str) -> None:
    node = factories.make_node()
    with pytest.raises(Invalid) as refused:
        record_heartbeat(node=node, request=heartbeat_of(node, dial=target), address="127.0.0.1", now=NOW)
    assert [error.field for error in refused.value.errors] == [field]


@pytest.mark.req("AGENT-16", "AGENT-02")
@pytest.mark.parametrize("off_s", [-600.0, 600.0])
def test_a_clock_ten_minutes_off_closes_no_door(door: RunningDoor, off_s: float) -> None:
    """The heartbeat tells the node's clock, and lines are dated by it."""
    door.wall = lambda: time.time() + off_s
    node = node_behind(door)
    Liveness.objects.filter(node=node).update(door_state="closed", door_reason=REFUSES)
    before = versions.read()
    target = msgspec.convert(node.dial, DoorTarget)
    message = heartbeat_of(node, dial=target, sent_at=NOW.timestamp() + off_s)
    record_heartbeat(node=node, request=message, address="127.0.0.1", now=NOW)
    assert versions.read() == before + 1
    assert run() == {"dialled": 1, "opened": 1, "closed": 0}
    assert door.door.counts == {"ping": 1}


def test_a_late_heartbeat_is_no_new_table_for_the_gateways() -> None:
    node = factories.make_node(dial=msgspec.to_builtins(TARGET))
    before = versions.read()
    for sequence, off_s in ((1, -19.0), (2, 15.0)):
        message = heartbeat_of(
            node, sequence=sequence, incarnation="run-1", dial=TARGET, sent_at=NOW.timestamp() + off_s
        )
        record_heartbeat(node=node, request=message, address="127.0.0.1", now=NOW)
    assert live_of(node).door_skew_s == 0.0
    assert versions.read() == before


# --- what it means --------------------------------------------------------------------------------


def place(task: Task) -> Task:
    ticks.run_tick("scheduling.place", NOW)
    task.refresh_from_db()
    return task


def test_no_inference_goes_behind_a_closed_door_until_it_opens(door: RunningDoor) -> None:
    node = node_behind(door, cards=2)
    inference = factories.make_task(estimated_gpu_memory_mb=100)
    other = factories.make_task(factories.make_group(task_type="container"), command=["run"])
    assert place(inference).state == "pending"
    assert [why["code"] for why in inference.refusals] == [Code.INSUFFICIENT_RESOURCES, Code.DOOR_CLOSED]
    other.refresh_from_db()
    assert other.node_id == node.pk  # nobody calls it
    assert run()["opened"] == 1
    assert place(inference).node_id == node.pk


def test_nodes_that_are_dialled_directly_have_no_door_to_be_closed() -> None:
    node = factories.make_node(cards=1)
    Liveness.objects.update(door_state="closed", door_reason=UNREACHABLE)
    assert place(factories.make_task(estimated_gpu_memory_mb=100)).node_id == node.pk


def test_operators_see_the_door_and_why_it_is_closed(
    door: RunningDoor, api_client: Callable[..., APIClient], operator: User, member: User
) -> None:
    node = node_behind(door)
    Liveness.objects.filter(node=node).update(
        door_state="closed", door_reason=OTHER_CERTIFICATE, door_since=NOW
    )
    shown = api_client(operator).get(f"/api/v1/nodes/{node.public_id}").json()["door"]
    assert (shown["state"], shown["reason"]["code"]) == ("closed", OTHER_CERTIFICATE)
    assert "certificate" in shown["reason"]["text"]
    direct = factories.make_node()
    assert api_client(operator).get(f"/api/v1/nodes/{direct.public_id}").json()["door"] is None
    assert "door" not in api_client(member).get(f"/api/v1/nodes/{node.public_id}").json()


def test_the_consoles_node_page_says_why_a_door_is_closed(
    door: RunningDoor, client: Client, operator: User
) -> None:
    node = node_behind(door)
    client.force_login(operator)
    page = reverse("admin:fleet_node_change", args=[node.pk])
    assert "not dialled yet" in client.get(page).content.decode()
    Liveness.objects.filter(node=node).update(door_state="closed", door_reason=UNREACHABLE)
    assert "check the address it advertises" in client.get(page).content.decode()
    assert client.get(reverse("admin:fleet_node_changelist")).status_code == 200
