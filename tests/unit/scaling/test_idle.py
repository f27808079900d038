"""When a service is idle, what becomes of a replica that left the routes, and that no order of events between
gateways, loop and clock cuts or forgets a call (SLEEP-06)."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract.states import Desired, Phase
from apps.routing.load import Load, Source, is_quiet, last_used
from apps.scaling.policy.idle import (
    Leaving,
    Serving,
    Step,
    Terms,
    are_heard,
    busy_groups,
    gone,
    is_idle,
    next_step,
)
from tests.examples import examples
from tests.factories import NOW

TERMS = Terms(fresh_s=30, forget_s=600)
SECOND = timedelta(seconds=1)
TASK, GROUP = "task-a", "tg-a"
IDLE_S = 60.0


def source(name: str = "g", *, ago_s: float = 0, left: bool = False, **load: Any) -> Source:
    return Source(name, NOW - ago_s * SECOND, Load(**{"version": 7, **load}), left)


def serving(**changes: Any) -> Serving:
    values = {
        "task_id": TASK,
        "group_id": GROUP,
        "since": NOW - 61 * SECOND,
        "asked_at": None,
        "idle_s": IDLE_S,
    }
    return Serving(**{**values, **changes})


def leaving(**changes: Any) -> Leaving:
    values = {"task_id": TASK, "group_id": GROUP, "left_table": 7, "since": NOW, "asked_at": None}
    values |= {"desired": Desired.SLEEP, "phase": Phase.READY, "idle_s": IDLE_S}
    return Leaving(**{**values, **changes})


@pytest.mark.req("SLEEP-06")
@pytest.mark.parametrize(
    ("replica", "sources", "busy", "idle"),
    [
        (serving(), [source()], (), True),
        (serving(since=NOW - 59 * SECOND), [source()], (), False),  # serves for less than its timeout
        (serving(asked_at=NOW - 59 * SECOND), [source()], (), False),
        (serving(asked_at=NOW - 60 * SECOND), [source()], (), True),
        (serving(), [source()], (GROUP,), False),  # a call is in flight
        (serving(), [source(), source("h", held={GROUP: 1})], (), False),  # one waits
    ],
)
def test_idle(replica: Serving, sources: list[Source], busy: tuple[str, ...], idle: bool) -> None:
    assert is_idle(replica, sources, busy, NOW) is idle


@pytest.mark.req("SLEEP-06")
def test_a_silent_gateway_is_not_an_idle_one() -> None:
    assert are_heard([source(ago_s=30)], NOW, TERMS)
    assert not are_heard([source(), source("silent", ago_s=31)], NOW, TERMS)
    assert not are_heard([], NOW, TERMS)
    assert are_heard([source(), source("left", ago_s=300, left=True)], NOW, TERMS)
    assert not are_heard([source("left", left=True)], NOW, TERMS)


@pytest.mark.req("SLEEP-06")
def test_who_is_gone() -> None:
    long_ago = NOW - timedelta(hours=1)
    there, dead, left = source("there", ago_s=600), source("dead", ago_s=601), source("left", left=True)
    assert gone([there, dead, left], NOW, long_ago, TERMS) == [dead, left]
    # While nobody listened, the database away for instance, nobody was silent.
    assert gone([there, dead, left], NOW, NOW - 600 * SECOND, TERMS) == [left]


@pytest.mark.req("SLEEP-06")
def test_quiet_is_said_by_every_gateway_of_the_table_without_the_replica() -> None:
    assert is_quiet([source(), source("h", version=8)], TASK, 7)
    assert not is_quiet([source(), source("h", version=6)], TASK, 7)
    assert not is_quiet([source(in_flight={TASK: 1})], TASK, 7)
    assert is_quiet([source(in_flight={"other": 1})], TASK, 7)
    assert is_quiet([source(ago_s=9999)], TASK, 7)  # however old: it stays true
    assert is_quiet([source(), source("left", version=1, left=True)], TASK, 7)
    assert not is_quiet([], TASK, 7)


@pytest.mark.req("SLEEP-06", "LIFE-09")
@pytest.mark.parametrize(
    ("replica", "sources", "busy", "step"),
    [
        (leaving(), [source()], (), Step.SLEEP),
        (leaving(), [source(version=6)], (), Step.WAIT),
        (leaving(), [source(version=6, held={GROUP: 1})], (), Step.CALL_BACK),
        (leaving(), [source(version=6)], (GROUP,), Step.CALL_BACK),
        (leaving(asked_at=NOW + SECOND), [source()], (), Step.CALL_BACK),
        (leaving(asked_at=NOW - 60 * SECOND), [source()], (), Step.SLEEP),
        (
            leaving(asked_at=NOW - 59 * SECOND),
            [source()],
            (),
            Step.CALL_BACK,
        ),  # told late, or by another clock
        # its node was told: a late call wakes it again, once
        (leaving(phase=Phase.LEAVING, asked_at=NOW + SECOND), [source()], (), Step.WAKE),
        (leaving(phase=Phase.LEAVING, asked_at=NOW + SECOND, desired=Desired.RUN), [source()], (), Step.OVER),
        (leaving(phase=Phase.LEAVING), [source(held={GROUP: 1})], (), Step.WAKE),
        (leaving(phase=Phase.LEAVING, left_table=None), [source(version=6)], (), Step.WAIT),
        (leaving(phase=Phase.LEAVING, left_table=None, asked_at=NOW + SECOND), [source()], (), Step.WAKE),
        # somebody asked for the sleep: calls do not change that
        (leaving(phase=Phase.LEAVING, asked_at=NOW + SECOND, idle_s=None), [source()], (), Step.OVER),
        (leaving(phase=Phase.LEAVING, idle_s=None), [source(in_flight={TASK: 2})], (GROUP,), Step.WAIT),
        # to stop, whatever comes
        (leaving(phase=Phase.LEAVING, desired=Desired.STOP, idle_s=None), [source()], (GROUP,), Step.STOP),
        (leaving(phase=Phase.LEAVING, desired=Desired.STOP, idle_s=None), [source(version=6)], (), Step.WAIT),
        (leaving(phase=Phase.LEAVING, desired=Desired.STOP, idle_s=None), [], (), Step.WAIT),
    ],
)
def test_what_a_replica_does_next(
    replica: Leaving, sources: list[Source], busy: tuple[str, ...], step: Step
) -> None:
    assert next_step(replica, sources, busy) is step


def test_sums_over_gateways() -> None:
    both = [source(used={"a": 1.0, "b": 5.0}, in_flight={"t1": 1}), source("h", used={"a": 3.0})]
    assert last_used(both) == {"a": 3.0, "b": 5.0}
    assert busy_groups(both, {"t1": "a", "t2": "b"}) == {"a"}


# ---- every order of events ----


@dataclass
class Gateway:
    """As plane/io works: one present table, calls counted in the step that chooses, words of one instant."""

    name: str
    world: "World"
    version: int = 0
    routed: bool = False
    dozing: bool = False
    calls: int = 0
    held: int = 0
    asked: bool = False
    used: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tell()  # before its first table
        self.refresh()

    def refresh(self) -> None:
        self.version, self.routed, self.dozing = self.world.published
        if self.held and (self.routed or not self.dozing):
            waiting, self.held, self.asked = self.held, 0, True
            for _ in range(waiting):
                self.arrive(again=True)

    def arrive(self, *, again: bool = False) -> None:
        self.asked = True
        if self.routed:
            self.calls += 1
        elif self.dozing:
            self.held += 1
        else:
            assert self.world.told, "a call was refused though its replica could have been called back"
            self.world.refused_after_wait += again

    def finish(self) -> None:
        if self.calls:
            self.calls, self.asked = self.calls - 1, True

    def tell(self) -> None:
        if self.asked:
            self.used, self.asked = {GROUP: self.world.now.timestamp()}, False
        load = Load(
            version=self.version,
            in_flight={TASK: self.calls} if self.calls else {},
            held={GROUP: self.held} if self.held else {},
            used=self.used,
        )
        self.world.rows[self.name] = Source(self.name, self.world.now, load)


@dataclass
class World:
    """One idle service with one replica, its rows, and the loop. `told`: its node was; from then on it may
    stop at any moment."""

    rows: dict[str, Source] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    now: Any = NOW
    published: tuple[int, bool, bool] = (1, True, False)
    since: Any = NOW - timedelta(hours=1)
    left_table: int | None = None
    told: bool = False
    woken: bool = False
    refused_after_wait: int = 0
    seen: tuple[list[Source], Any] | None = None
    kept_at: float | None = None
    changes: int = 0

    def publish(self, *, routed: bool, dozing: bool) -> None:
        self.published = (self.published[0] + 1, routed, dozing)
        self.changes += 1
        self.since = self.now

    def look(self) -> None:
        """The loop reads; what it does with that comes later, on what it has read."""
        self.seen = (list(self.rows.values()), self.changes)

    def act(self) -> None:
        if self.seen is None or self.seen[1] != self.changes:
            return
        (sources, _), self.seen = self.seen, None
        busy = busy_groups(sources, {TASK: GROUP})
        at = max(filter(None, (last_used(sources).get(GROUP), self.kept_at)), default=None)
        asked_at = None if at is None else NOW + timedelta(seconds=at - NOW.timestamp())
        if self.left_table is None:
            replica = Serving(TASK, GROUP, self.since, asked_at, IDLE_S)
            if are_heard(sources, self.now, TERMS) and is_idle(replica, sources, busy, self.now):
                self.publish(routed=False, dozing=True)
                self.left_table = self.published[0]
            return
        desired = Desired.RUN if self.woken else Desired.SLEEP
        phase = Phase.LEAVING if self.told else Phase.READY
        left_table = None if self.told else self.left_table
        leaves = Leaving(
            TASK,
            GROUP,
            left_table,
            self.since,
            asked_at,
            desired,
            phase,
            idle_s=None if self.woken else IDLE_S,
        )
        match next_step(leaves, sources, busy):
            case Step.CALL_BACK:
                self.back()
            case Step.SLEEP:
                self.told = True
                since = self.since
                self.publish(routed=False, dozing=False)
                self.since = since  # its state has not changed
            case Step.WAKE:
                self.woken = True

    def calm(self, *, late: bool) -> None:
        for gateway in self.on_time(late):
            while gateway.calls:
                gateway.finish()
            gateway.tell()
        self.now += timedelta(seconds=IDLE_S + 1)
        self.round(late=late)

    def round(self, *, late: bool) -> None:
        for gateway in self.on_time(late):
            gateway.refresh()
            gateway.tell()
        self.look()

    def on_time(self, late: bool) -> list[Gateway]:
        return list(self.gateways.values())[: -1 if late and len(self.gateways) > 1 else None]

    def back(self) -> None:
        if self.left_table is not None and not self.told:
            self.left_table = None
            self.publish(routed=True, dozing=False)

    def check(self) -> None:
        if self.told:
            cut = [gateway.name for gateway in self.gateways.values() if gateway.calls]
            assert not cut, f"calls of {cut} are cut"


# `calm`: a minute without calls up to the loop's look. `round`: gateways read and tell, the loop looks. In
# both the youngest gateway may be late. Without them few stories would come as far as to sleep.
EVENTS = st.sampled_from(
    [
        *("arrive", "finish", "refresh", "refresh", "tell", "tell", "look", "act", "act", "pass", "deadline"),
        *("die", "join", "calm", "calm", "round", "round"),
    ]
)


@pytest.mark.req("SLEEP-06")
@settings(max_examples=examples(1500), deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 2)), min_size=5, max_size=80))
def test_no_order_of_events_cuts_or_loses_a_call(events: list[tuple[str, int]]) -> None:
    world = World()
    for name in ("a", "b"):
        world.gateways[name] = Gateway(name, world)
    born = 2
    for event, which in events:
        names = list(world.gateways)
        gateway = world.gateways[names[which % len(names)]]
        match event:
            case "arrive" | "finish" | "refresh" | "tell":
                getattr(gateway, event)()
            case "look" | "act":
                getattr(world, event)()
            case "pass":
                world.now += timedelta(seconds=0.4 if which else 29)
            case "calm":
                world.calm(late=which == 2)
            case "round":
                world.round(late=which == 2)
            case "deadline":
                world.back()
            case "die" if len(names) > 1:
                del world.gateways[gateway.name]  # its row stays, its calls end with it
            case "join" if len(names) < 3:
                born += 1
                world.gateways[f"g{born}"] = Gateway(f"g{born}", world)
        world.check()
    _settle(world)


def _settle(world: World) -> None:
    """All goes well from here: what waits is served, or whoever is asleep was asked to wake."""
    world.kept_at = last_used(list(world.rows.values())).get(GROUP)  # kept as the rows go
    for name in set(world.rows) - set(world.gateways):
        del world.rows[name]  # aged out
    if world.left_table is not None and not world.told and any(g.held for g in world.gateways.values()):
        _round(world)
        assert world.left_table is None and not any(g.held for g in world.gateways.values())
        assert all(g.routed for g in world.gateways.values()), "called back, it serves"
    asked = any(g.asked for g in world.gateways.values())
    if world.told and not world.woken and (asked or world.refused_after_wait):
        world.now += SECOND
        _round(world)
        assert world.woken, "a call that came as it fell asleep is forgotten"


def _round(world: World) -> None:
    for gateway in world.gateways.values():
        gateway.tell()
    world.look()
    world.act()
    for gateway in world.gateways.values():
        gateway.refresh()
