"""The idle loop on real rows: to sleep by itself, back at any sign of use, and drains that end early."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.messages import SleepOrder
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core import hints, leases, ticks, versions
from apps.core.models import TickRun
from apps.fleet.models import Node, Port
from apps.routing import gateways
from apps.routing.load import Load
from apps.routing.models import GatewayLoad, ModelRoute
from apps.routing.published import load_table
from apps.scaling.loop import NAME
from apps.workloads import selectors, services
from apps.workloads.models import Event, Task
from apps.workloads.state import move_of, transition
from tests import factories
from tests.factories import NOW

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("SLEEP-06")]
SECOND = timedelta(seconds=1)
BEGAN = NOW - timedelta(hours=2)


def serving(*, idle: int = 10, since: datetime = BEGAN, **fields: Any) -> Task:
    group = factories.make_group(state=State.RUNNING, idle_timeout_minutes=idle, **fields)
    ModelRoute.objects.create(tenant=group.tenant, model_name="m", group=group)
    node = factories.make_node()
    task = factories.make_task(
        group, state=State.RUNNING, phase=Phase.READY, attempt=1, node=node, running_since=since, now=since
    )
    factories.make_claim(task, node, incarnation="run-1")
    Port.objects.create(node=node, number=20001, owner=task.public_id, attempt=1, container_port=8000)
    versions.bump()
    return task


def say(name: str = "a", at: datetime = NOW, *, left: bool = False, **load: Any) -> None:
    gateways.say(name, Load(**{"version": versions.read(), **load}), at, left=left)


def look(now: datetime = NOW) -> dict[str, Any]:
    done = ticks.run_tick(NAME, now)
    assert done is not None, TickRun.objects.get(name=NAME).detail
    return done


def now_is(task: Task) -> tuple[str, str, str, str]:
    task.refresh_from_db()
    return task.state, task.phase, task.desired, task.reason_code


AWAKE = (State.RUNNING, Phase.READY, Desired.RUN)
DOZES = (State.DRAINING, Phase.READY, Desired.SLEEP, Code.IDLE)
ORDERED = (State.DRAINING, Phase.LEAVING, Desired.SLEEP, Code.IDLE)


def dozing(**fields: Any) -> Task:
    task = serving(**fields)
    say()
    assert look()["left"] == 1 and now_is(task) == DOZES
    return task


def route_of(task: Task) -> Any:
    (route,) = load_table().routes[task.group.tenant.public_id]["m"]
    return route


def test_idle_it_leaves_the_routes_and_sleeps_when_every_gateway_has_seen_that() -> None:
    task = serving()
    say("a", version=1)
    say("b", version=1)
    assert look()["left"] == 1
    assert now_is(task) == DOZES and task.left_table == versions.read()
    assert (route_of(task).replicas, route_of(task).dozing) == ((), True)
    assert [wanted.desired for wanted in selectors.desired_of(task.node)] == [Desired.RUN]
    assert task.deadline_at == NOW + timedelta(seconds=settings.SLEEP_DRAIN_S)

    say("a", NOW + SECOND)
    look(NOW + SECOND)
    assert now_is(task) == DOZES  # b serves the old table
    say("b", NOW + 2 * SECOND)
    look(NOW + 2 * SECOND)
    assert now_is(task) == ORDERED
    assert (route_of(task).replicas, route_of(task).dozing) == ((), False)
    (wanted,) = selectors.desired_of(task.node)
    assert wanted.desired == Desired.STOP and wanted.sleep is not None and wanted.sleep.quiet
    event = Event.objects.get(task=task, code=Code.IDLE)
    assert (event.params, event.actor) == ({"idle_minutes": 10}, "scaling")


@pytest.mark.parametrize(
    "load",
    [
        {"used": True, "ago_s": 599},
        {"in_flight": 1},
        {"held": 1},
    ],
)
def test_a_service_in_use_is_not_idle(load: dict[str, int]) -> None:
    task = serving()
    group = task.group.public_id
    said: dict[str, Any] = {}
    if "used" in load:
        said["used"] = {group: (NOW - load["ago_s"] * SECOND).timestamp()}
    if "in_flight" in load:
        said["in_flight"] = {task.public_id: 1}
    if "held" in load:
        said["held"] = {group: 1}
    say("a")
    say("b", **said)
    look()
    assert now_is(task)[:3] == AWAKE


def test_used_longer_ago_than_its_timeout_it_is_idle() -> None:
    task = serving()
    say(used={task.group.public_id: (NOW - 600 * SECOND).timestamp()})
    look()
    assert now_is(task) == DOZES


@pytest.mark.parametrize(
    "fields",
    [{"idle": 0}, {"since": NOW - 599 * SECOND}, {"task_type": TaskType.CONTAINER}, {"deleted_at": NOW}],
)
def test_what_never_sleeps_by_itself(fields: dict[str, Any]) -> None:
    task = serving(**fields)
    say()
    look()
    assert now_is(task)[:3] == AWAKE


def test_a_replica_in_exchange_does_not_sleep() -> None:
    task = serving()
    say()
    pair = factories.make_task(task.group, replaces=task)
    look()
    assert now_is(task)[:3] == AWAKE
    Task.objects.filter(pk=pair.pk).delete()
    look()
    assert now_is(task) == DOZES


def test_a_silent_gateway_may_be_busy_and_one_that_left_is_not() -> None:
    task = serving()
    say("a")
    say("silent", NOW - timedelta(seconds=settings.LOAD_FRESH_S + 1))
    assert look()["all_heard"] is False
    assert now_is(task)[:3] == AWAKE
    say("silent", NOW - timedelta(seconds=settings.LOAD_FRESH_S + 1), left=True)
    look()
    assert now_is(task) == DOZES
    assert set(GatewayLoad.objects.values_list("name", flat=True)) == {"a"}


def test_without_any_gateway_nothing_is_known() -> None:
    task = serving()
    look()
    assert now_is(task)[:3] == AWAKE


def test_a_dead_gateway_is_forgotten_only_while_others_could_have_spoken() -> None:
    task = serving()
    say("a")
    say("dead", NOW - timedelta(days=1), in_flight={task.public_id: 1})
    assert look()["forgotten"] == 0  # the loop itself has only just begun to listen
    assert now_is(task)[:3] == AWAKE
    patience = timedelta(seconds=settings.LOAD_FORGET_S)
    say("a", NOW + patience + SECOND)
    assert look(NOW + patience + SECOND)["forgotten"] == 0  # it stood still meanwhile
    ran_on = {"started_at": NOW + patience, "detail": {"listening_since": NOW.isoformat()}}
    TickRun.objects.filter(name=NAME).update(**ran_on)
    assert look(NOW + patience + SECOND)["forgotten"] == 1
    assert now_is(task) == DOZES


def test_when_it_was_asked_for_outlives_the_gateway() -> None:
    task = serving()
    asked = NOW - 599 * SECOND
    say("a")
    say("b", used={task.group.public_id: asked.timestamp()}, left=True)
    assert look()["forgotten"] == 1
    task.group.refresh_from_db()
    assert task.group.asked_at == asked and now_is(task)[:3] == AWAKE
    say("a", NOW + SECOND)
    look(NOW + SECOND)
    assert now_is(task) == DOZES


def test_when_it_was_asked_for_is_kept_before_the_gateway_leaves_it_out() -> None:
    task = serving(idle=10_000)
    say(used={task.group.public_id: NOW.timestamp()})
    look()
    task.group.refresh_from_db()
    assert task.group.asked_at == NOW
    say(used={task.group.public_id: (NOW + SECOND).timestamp()})
    look()
    task.group.refresh_from_db()
    assert task.group.asked_at == NOW  # no write for each second
    later = NOW + timedelta(seconds=settings.LOAD_FORGET_S + 1)
    say(used={task.group.public_id: later.timestamp()})
    look(later)
    task.group.refresh_from_db()
    assert task.group.asked_at == later


@pytest.mark.parametrize("sign", ["in_flight", "held", "used"])
def test_any_sign_of_use_calls_it_back(sign: str) -> None:
    task = dozing()
    group = task.group.public_id
    values = {"in_flight": {task.public_id: 1}, "held": {group: 1}, "used": {group: NOW.timestamp() + 1}}
    say("a", NOW + SECOND, **{sign: values[sign]})
    look(NOW + SECOND)
    assert now_is(task) == (*AWAKE, Code.STILL_USED)
    assert [replica.task_id for replica in route_of(task).replicas] == [task.public_id]
    say("a", NOW + 2 * SECOND)
    look(NOW + 2 * SECOND)
    assert now_is(task)[:3] == AWAKE  # its timeout begins anew
    later = NOW + 602 * SECOND
    say("a", later)
    look(later)
    assert now_is(task) == DOZES


def test_a_call_that_waits_kicks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    kicked: list[str] = []
    monkeypatch.setattr(hints, "kick", kicked.append)
    say("a")
    assert kicked == []
    say("a", held={"tg-a": 1})
    assert kicked == [NAME]


def test_a_call_after_its_node_was_told_wakes_it_once() -> None:
    task = dozing()
    say("a", NOW + SECOND)
    look(NOW + SECOND)
    assert now_is(task) == ORDERED
    for second in (2, 3):
        say("a", NOW + second * SECOND, used={task.group.public_id: NOW.timestamp() + second})
        look(NOW + second * SECOND)
        assert now_is(task)[1:] == (Phase.LEAVING, Desired.RUN, Code.WAKE_REQUESTED)
    assert Event.objects.filter(task=task, code=Code.WAKE_REQUESTED).count() == 1


def test_the_deadline_calls_it_back() -> None:
    task = dozing()
    lease = leases.acquire("recovery.sweep", "test", 60)
    assert lease is not None
    late = NOW + timedelta(seconds=settings.SLEEP_DRAIN_S + 1)
    assert services.expire_deadlines(lease=lease, now=late) == 1
    assert now_is(task) == (*AWAKE, Code.STILL_USED)


def test_an_idle_service_does_not_sleep_over_calls_of_a_table_before() -> None:
    """What an old word says of an old table is no word on this one."""
    task = serving()
    before = versions.read()
    say("a", version=before)
    look()
    for second in range(1, 4):
        say("a", NOW + second * SECOND, version=before)
        look(NOW + second * SECOND)
        assert now_is(task) == DOZES


@pytest.mark.parametrize("retired", [True, False])
@pytest.mark.req("LIFE-09", "LIFE-04")
def test_a_drain_to_stop_ends_when_no_gateway_has_a_call_of_it(retired: bool) -> None:
    task = serving(idle=0)
    if retired:
        Task.objects.filter(pk=task.pk).update(retired_at=NOW)
    leave_to_stop(task)
    say("a", in_flight={task.public_id: 1})
    say("b")
    look()
    assert now_is(task)[0] == State.DRAINING
    say("a", NOW + SECOND)
    look(NOW + SECOND)
    assert now_is(task) == (State.STOPPING, Phase.LEAVING, Desired.STOP, Code.SCALED_IN)


@pytest.mark.req("SLEEP-01")
def test_a_sleep_that_somebody_asked_for_tells_its_node_when_gateways_are_done() -> None:
    task = serving()
    services.request_sleep(by="ann", task=task, now=NOW)
    say("a", in_flight={task.public_id: 1}, held={}, used={task.group.public_id: NOW.timestamp() + 9})
    look()
    assert not orders(task).quiet
    say("a", NOW + SECOND, used={task.group.public_id: NOW.timestamp() + 9})
    look(NOW + SECOND)
    assert orders(task).quiet
    assert now_is(task) == (State.DRAINING, Phase.LEAVING, Desired.SLEEP, Code.SLEEP_REQUESTED)


def leave_to_stop(task: Task) -> None:
    why = reason(Code.SCALED_IN, replicas=1)
    task.refresh_from_db()
    assert transition(
        move_of(task, State.DRAINING, why, desired=Desired.STOP, phase=Phase.LEAVING), actor="x", now=NOW
    )


def orders(task: Task) -> SleepOrder:
    (wanted,) = selectors.desired_of(Node.objects.get(pk=task.node_id))
    assert wanted.sleep is not None
    return wanted.sleep


@pytest.mark.req("SLEEP-01", "SLEEP-06")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_persons_word_that_it_shall_sleep_stands_against_a_call_that_still_comes(ordered: bool) -> None:
    task = dozing()
    if ordered:
        say(at=NOW + SECOND)
        look(NOW + SECOND)
    act = services.request_sleep(by="ann", task=task, now=NOW + SECOND)
    assert act.why.code == Code.SLEEP_REQUESTED
    assert now_is(task) == (State.DRAINING, Phase.LEAVING, Desired.SLEEP, Code.SLEEP_REQUESTED)
    assert Event.objects.get(task=task, code=Code.SLEEP_REQUESTED).actor == "ann"
    again = services.request_sleep(by="ann", task=task, now=NOW + SECOND)
    assert again.why.code == "already_falling_asleep"
    say(at=NOW + 2 * SECOND, used={task.group.public_id: (NOW + SECOND).timestamp()})
    look(NOW + 2 * SECOND)
    assert now_is(task)[2:] == (Desired.SLEEP, Code.SLEEP_REQUESTED)
