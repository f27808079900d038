"""POST /agent/v1/claims: one run of one agent gets an attempt (AGENT-02, LIFE-08)."""

import threading

import pytest
from django.db import connection

from agent.contract import messages as m
from apps.fleet.models import Liveness
from apps.workloads.models import Claim, Task
from tests import factories
from tests.apps.agentlink.conftest import Caller

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-02", "LIFE-08")]


def ask(agent, task, attempt=1, incarnation="run-1"):
    return agent.post("claims", m.ClaimRequest(incarnation, task.public_id, attempt))


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
