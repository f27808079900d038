"""Random stories of a small fleet: whatever happens in whatever order, no impossible state, no card held
twice, and everything can still be stopped (LIFE-01, LIFE-02, LIFE-05, SCHED-05, OPS-06)."""

from copy import deepcopy
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agent.contract.codes import Code, reason
from agent.contract.states import Observed, State, TaskType
from apps.core.errors import Refusal
from apps.fleet.models import Card, Node
from apps.upkeep import services as upkeep
from apps.workloads import services
from apps.workloads.models import Loan, Task, TaskGroup
from tests.apps.workloads.simulated import LOOPS, World, pick, quiet

NUMBER = st.integers(min_value=0, max_value=11)
SECONDS = st.sampled_from([0.5, 5, 31, 70, 400, 4000])
STEPS = 16


class Story(RuleBasedStateMachine):
    """Each example is a savepoint that is rolled back, and begins in the same world."""

    beginning: World

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.atomic()
        self.savepoint.__enter__()
        self.world = deepcopy(self.beginning)
        self.seen_events = self.asked = 0

    def ask(self, act: Any, **more: Any) -> None:
        """What a person asks for, who may be told no; every other time agents act at once."""
        self.asked += 1
        try:
            act(now=self.world.now, **more)
        except Refusal:
            return
        if self.asked % 2:
            self.world.agents_act()

    def task(self, number: int, *states: State) -> Task | None:
        rows = Task.objects.filter(group__deleted_at__isnull=True).order_by("pk")
        return pick(rows.filter(state__in=states) if states else rows, number)

    @initialize(asleep=st.booleans(), waiting=st.booleans(), woken=st.booleans())
    def where_it_begins(self, asleep: bool, waiting: bool, woken: bool) -> None:
        """Everything runs; or what may is told to sleep; or sleeps already, or was asked to wake in the same
        instant."""
        may_sleep = Task.objects.filter(group__task_type=TaskType.INFERENCE).order_by("pk")
        by, now = self.world.member.name, self.world.now
        for task in may_sleep if asleep else ():
            services.request_sleep(by=by, task=task, now=now)
        if waiting:
            self.world.agents_act()
        for task in may_sleep if asleep and waiting and woken else ():
            services.request_wake(by=by, task=task, now=now)

    # --- loops and agents ---

    @rule(name=st.sampled_from(LOOPS))
    def a_loop_runs(self, name: str) -> None:
        self.world.run_loop(name)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule()
    def all_agents_are_heard_and_act(self) -> None:
        self.world.agents_act()

    @rule(number=NUMBER)
    def an_agent_hears(self, number: int) -> None:
        self.world.beat(pick(self.world.agents, number))

    @rule(number=NUMBER)
    def an_agent_acts_on_what_it_heard(self, number: int) -> None:
        self.world.carry_out(pick(self.world.agents, number))

    @rule()
    def the_fleet_goes_on(self) -> None:
        self.world.go_on()

    @rule(number=NUMBER, seen=st.sampled_from([Observed.READY, Observed.UNHEALTHY, Observed.STARTING]))
    def a_container_is_seen(self, number: int, seen: Observed) -> None:
        self.with_container(number, lambda agent, key: self.world.tell(agent, key, seen))

    @rule(number=NUMBER, code=st.sampled_from([0, 1, 137]))
    def a_container_ends(self, number: int, code: int) -> None:
        def end(agent: Any, key: Any) -> None:
            del agent.here[key]
            self.world.tell(agent, key, Observed.EXITED, code=code)

        self.with_container(number, end)

    @rule(number=NUMBER)
    def a_container_vanishes_unheard(self, number: int) -> None:
        self.with_container(number, lambda agent, key: agent.here.pop(key))

    def with_container(self, number: int, act: Any) -> None:
        found = pick([(agent, key) for agent in self.world.agents for key in agent.here], number)
        if found:
            act(*found)

    @rule(number=NUMBER)
    def an_agent_restarts(self, number: int) -> None:
        self.world.restart(pick(self.world.agents, number))

    @rule(number=NUMBER)
    def a_machine_restarts_and_its_containers_are_gone(self, number: int) -> None:
        agent = pick(self.world.agents, number)
        agent.here = {key: seen for key, seen in agent.here.items() if seen is Observed.ASLEEP}
        self.world.restart(agent)

    @rule(number=NUMBER)
    def a_node_is_cut_off(self, number: int) -> None:
        pick(self.world.agents, number).held_up = True

    @rule(number=NUMBER)
    def a_node_is_back(self, number: int) -> None:
        pick(self.world.agents, number).held_up = False

    @rule(number=NUMBER, present=st.booleans())
    def a_card_is_lost_or_found(self, number: int, present: bool) -> None:
        Card.objects.filter(pk=pick(Card.objects.order_by("pk"), number).pk).update(present=present)

    # --- people ---

    @rule(number=NUMBER)
    def somebody_stops_a_task(self, number: int) -> None:
        task = self.task(number)
        if task:
            why = reason(Code.STOP_REQUESTED)
            self.ask(services.request_stop, actor=self.world.member, tasks=[task], why=why)

    @rule(number=NUMBER)
    def somebody_starts_a_service(self, number: int) -> None:
        group = pick(TaskGroup.objects.filter(deleted_at__isnull=True).order_by("pk"), number)
        if group:
            self.ask(services.start_again, actor=self.world.member, tasks=group.tasks.all())

    @rule(number=NUMBER)
    def somebody_puts_a_task_to_sleep(self, number: int) -> None:
        task = self.task(number, State.RUNNING, State.DRAINING, State.SLEEPING, State.WAKING)
        if task:
            self.ask(services.request_sleep, by=self.world.member.name, task=task)

    @rule(number=NUMBER)
    def somebody_wakes_a_task(self, number: int) -> None:
        task = self.task(number, State.DRAINING, State.SLEEPING, State.WAKING)
        if task:
            self.ask(services.request_wake, by=self.world.member.name, task=task)

    @rule(number=NUMBER, replicas=st.integers(min_value=1, max_value=3))
    def somebody_scales_a_service(self, number: int, replicas: int) -> None:
        group = pick(TaskGroup.objects.filter(deleted_at__isnull=True).order_by("pk"), number)
        if group:
            self.ask(services.set_replicas, by=self.world.member.name, group=group, replicas=replicas)

    @rule(number=NUMBER)
    def somebody_deletes_a_service(self, number: int) -> None:
        group = pick(TaskGroup.objects.filter(deleted_at__isnull=True).order_by("pk"), number)
        if group:
            self.ask(services.request_delete, actor=self.world.member, group=group)

    @rule(kind=st.sampled_from([TaskType.INFERENCE, TaskType.TRAINING]), priority=st.integers(0, 2))
    def somebody_makes_a_service(self, kind: TaskType, priority: int) -> None:
        self.world.new_group(kind, replicas=1, gpus=1, priority=priority)
        self.world.run_loop("scheduling.place")

    # --- operators ---

    @rule(number=NUMBER, act=st.sampled_from([upkeep.drain_node, upkeep.maintain_node, upkeep.resume_node]))
    def an_operator_empties_a_node_or_takes_it_back(self, number: int, act: Any) -> None:
        node = pick(Node.objects.order_by("pk"), number)
        self.ask(act, actor=self.world.operator, node=node)

    @rule(number=NUMBER)
    def an_operator_forces_a_node_empty(self, number: int) -> None:
        node = pick(Node.objects.order_by("pk"), number)
        self.ask(upkeep.force_node, actor=self.world.operator, node=node, after_s=0)

    @rule(number=NUMBER)
    def training_arrives_and_a_service_sleeps(self, number: int) -> None:
        """What it would need to borrow a card."""
        self.somebody_puts_a_task_to_sleep(number)
        self.world.agents_act()
        self.world.new_group(TaskType.TRAINING, replicas=1, gpus=1)
        self.world.run_loop("scheduling.place")

    @rule(number=NUMBER)
    def an_operator_ends_a_loan(self, number: int) -> None:
        loan = pick(Loan.objects.filter(ended_at__isnull=True).order_by("pk"), number)
        if loan:
            self.ask(services.end_loan, actor=self.world.operator, loan=loan)

    # --- what must hold ---

    @invariant()
    def nothing_impossible(self) -> None:
        self.seen_events = self.world.check(self.seen_events)

    def teardown(self) -> None:
        """Every story can still be stopped, and then nothing is left."""
        try:
            world = self.world
            Card.objects.update(present=True)
            for node in Node.objects.all():
                self.ask(upkeep.resume_node, actor=world.operator, node=node)
            tasks = Task.objects.order_by("pk")
            why = reason(Code.STOP_REQUESTED)
            services.request_stop(actor=world.member, tasks=tasks, why=why, now=world.now)
            assert world.settle() == []
            world.check(self.seen_events)
        finally:
            transaction.set_rollback(True)
            self.savepoint.__exit__(None, None, None)


def tell(stories: int, steps: int = STEPS) -> None:
    Story.beginning = World()
    with quiet():
        run_state_machine_as_test(
            Story,
            settings=settings(
                max_examples=stories,
                stateful_step_count=steps,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.req("LIFE-01", "LIFE-02", "LIFE-05", "SCHED-05", "RECOV-05", "OPS-06")
@pytest.mark.django_db
def test_no_story_ends_in_an_impossible_state() -> None:
    tell(5)  # a first look; the thousand are told with the whole suite


@pytest.mark.req("LIFE-01", "LIFE-02", "LIFE-05", "SCHED-05", "RECOV-05", "OPS-06")
@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.timeout(1800)
@pytest.mark.django_db
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_stories(part: int) -> None:
    """In four parts, each with its own chance."""
    tell(250)
