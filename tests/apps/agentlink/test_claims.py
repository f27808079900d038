"""POST /agent/v1/claims: one run of one agent gets an attempt (AGENT-02, LIFE-08)."""

import threading

import pytest
from django.db import connection

from agent.contract import messages as m
from apps.fleet.models import Liveness, Node, Port
from apps.workloads.models import Claim, Event, Task
from tests import factories
from tests.apps.agentlink.conftest import Caller

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-02", "LIFE-08")]


def ask(agent, task, attempt=1, incarnation="run-1", busy_ports=()):
    return agent.post("claims", m.ClaimRequest(incarnation, task.public_id, attempt, list(busy_ports)))


def refused(answer):
    assert isinstance(answer, m.ClaimRefused), answer
    return answer.reason.code


def test_a_placed_attempt_is_given_with_all_that_it_needs(agent, node, placed):
    answer = ask(agent, placed)
    assert isinstance(answer, m.ClaimGranted)
    assert (answer.spec.task_id, answer.spec.attempt) == (placed.public_id, 1)
    assert answer.spec.gpu_uuids == [node.cards.first().uuid]
    assert Task.objects.get(pk=placed.pk).phase == "claimed"


def test_a_lost_answer_may_be_asked_for_again(agent, placed):
    assert ask(agent, placed) == ask(agent, placed)


def test_another_attempt_is_not_this_one(agent, placed):
    for attempt in (0, 2):
        assert ask(agent, placed, attempt=attempt).code == "not_this_nodes"
        assert agent.status == 403


def test_an_attempt_that_was_placed_anew_is_lost(agent, placed):
    Task.objects.filter(pk=placed.pk).update(attempt=2)
    assert refused(ask(agent, placed)) == "claim_lost"


@pytest.mark.req("TEN-04")
def test_another_nodes_task_and_no_task_look_alike(node, placed):
    other = Caller(factories.make_node())
    theirs = ask(other, placed)
    nobodys = other.post("claims", m.ClaimRequest("run-1", "task-aaaaaaaaaaaaaaaa", 1))
    assert theirs == nobodys
    assert (theirs.code, other.status) == ("not_this_nodes", 403)
    for odd in ("", "\0", "x" * 5000, "\u00fc"):
        assert other.post("claims", m.ClaimRequest("run-1", odd, 1)) == theirs
    old = other.post("claims", m.ClaimRequest("run-1", placed.public_id, 1), **{m.CONTRACT_HEADER: "1"})
    assert (refused(old), other.status) == ("claim_unknown", 200)


def test_an_older_run_of_the_agent_gets_nothing(agent, node, placed):
    Liveness.objects.filter(node=node).update(incarnation="run-2")
    assert refused(ask(agent, placed, incarnation="run-1")) == "claim_superseded"


@pytest.mark.django_db(transaction=True)
def test_two_runs_of_one_agent_at_once_never_both_get_it(node, placed):
    """Two processes with the same credential; the newest run is the only one that counts."""
    answers, start = {}, threading.Barrier(4)

    def claim(run):
        try:
            start.wait()
            answers[run] = ask(Caller(node), placed, incarnation=run)
        finally:
            connection.close()

    threads = [threading.Thread(target=claim, args=(f"run-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    granted = [run for run, answer in answers.items() if isinstance(answer, m.ClaimGranted)]
    assert granted == ["run-1"]
    assert Claim.objects.get(task=placed).incarnation == "run-1"


# --- ports ----------------------------------------------------------------------------------------


def with_ports(task, *asked):
    """The task asks for these (container port, host port or 0); rows as a placement makes them."""
    Task.objects.filter(pk=task.pk).update(
        ports=[{"container_port": inside, "host_port": outside} for inside, outside in asked]
    )
    Port.objects.filter(owner=task.public_id).delete()
    for number, (inside, outside) in enumerate(asked):
        Port.objects.create(
            node=task.node,
            number=outside or 20000 + number,
            owner=task.public_id,
            attempt=1,
            container_port=inside,
        )


def ports_of(answer):
    return [(port.container_port, port.host_port, port.movable) for port in answer.spec.ports]


@pytest.mark.req("AGENT-07", "SVC-12")
def test_a_busy_port_that_nobody_fixed_comes_back_as_another_and_the_row_follows(agent, node, placed):
    Node.objects.filter(pk=node.pk).update(port_first=20000, port_last=20005)
    with_ports(placed, (80, 0), (90, 20004), (95, 0))
    other = factories.make_task(node=node)
    Port.objects.create(node=node, number=20001, owner=other.public_id, attempt=1, container_port=80)
    Liveness.objects.filter(node=node).update(foreign_ports=[20003])
    assert ports_of(ask(agent, placed)) == [(80, 20000, True), (90, 20004, False), (95, 20002, True)]

    # 20001 and 20002 are others', 20003 a stranger's, 20004 fixed: 20005 is left.
    moved = ask(agent, placed, busy_ports=[20000, 20004])
    assert ports_of(moved) == [(80, 20005, True), (90, 20004, False), (95, 20002, True)]
    assert ask(agent, placed, busy_ports=[20000, 20004]) == moved  # its answer was lost
    assert set(Port.objects.filter(owner=placed.public_id).values_list("number", flat=True)) == {
        20002,
        20004,
        20005,
    }
    (told,) = Event.objects.filter(task=placed, code="port_moved")
    assert (told.params, told.actor, told.attempt) == ({"port": 20000, "to": 20005}, node.public_id, 1)

    # None is left: it keeps its own, and fails on it.
    assert ports_of(ask(agent, placed, busy_ports=[20000, 20005]))[0] == (80, 20005, True)


@pytest.mark.req("AGENT-07")
def test_ports_of_others_and_of_no_use_are_no_matter(agent, node, placed):
    with_ports(placed, (80, 0))
    other = factories.make_task(node=node)
    Port.objects.create(node=node, number=20007, owner=other.public_id, attempt=1, container_port=80)
    before = ask(agent, placed)
    assert ask(agent, placed, busy_ports=[20007, -1, 2**70, 0]) == before
    assert Port.objects.get(owner=other.public_id).number == 20007
