"""POST /agent/v1/reports: in order, once, and one bad report never holds up the rest."""

import msgspec
import pytest
from django.db import OperationalError

from agent.contract import messages as m
from agent.contract.codes import Code, Reason
from agent.contract.states import Observed, Phase
from apps.agentlink import services
from apps.alerts.models import Alert
from apps.fleet.models import Liveness
from apps.workloads import services as workloads
from apps.workloads.models import Claim, Event, Task
from tests import factories
from tests.apps.agentlink.conftest import Caller

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-02", "RECOV-05")]


@pytest.fixture
def taken(agent, placed):
    """`placed`, taken on by the node's present run."""
    answer = agent.post("claims", m.ClaimRequest("run-1", placed.public_id, 1))
    assert isinstance(answer, m.ClaimGranted)
    return placed


def report(task, sequence, phase=Phase.READY, observed=Observed.READY, **more):
    return m.TaskReport(sequence, task.public_id, 1, phase, observed, **more)


def send(agent, *reports, incarnation="run-1"):
    return agent.post("reports", m.ReportRequest(incarnation, list(reports)))


def state(task):
    row = Task.objects.get(pk=task.pk)
    return row.state, row.phase


def everything():
    return (
        list(Task.objects.order_by("pk").values()),
        list(Event.objects.order_by("pk").values()),
        list(Claim.objects.order_by("pk").values()),
        list(Liveness.objects.order_by("pk").values()),
    )


@pytest.mark.req("LIFE-08")
def test_ready_makes_it_run(agent, taken):
    answer = send(agent, report(taken, 1, Phase.LOADING, Observed.STARTING), report(taken, 2))
    assert answer == m.ReportReply(2)
    assert state(taken) == ("running", "ready")


def test_reports_are_applied_in_the_order_of_their_sequence(agent, taken):
    send(agent, report(taken, 2), report(taken, 1, Phase.LOADING, Observed.STARTING))
    assert state(taken) == ("running", "ready")


def test_repeated_reports_are_answered_alike_and_change_nothing(agent, taken):
    first = send(agent, report(taken, 1), report(taken, 2))
    before = everything()
    assert send(agent, report(taken, 1), report(taken, 2)) == first
    assert everything() == before


def test_older_reports_change_nothing(agent, taken):
    send(agent, report(taken, 5))
    before = everything()
    assert send(agent, report(taken, 3, Phase.NONE, Observed.EXITED, exit_code=1)) == m.ReportReply(3)
    assert everything() == before


def test_reports_of_an_older_run_are_ignored(agent, node, taken):
    Liveness.objects.filter(node=node).update(incarnation="run-2", report_sequence=0)
    before = everything()
    assert send(agent, report(taken, 7, Phase.NONE, Observed.EXITED)) == m.ReportReply(7)
    assert everything() == before


@pytest.mark.req("TEN-04")
def test_another_nodes_report_changes_nothing_and_looks_alike(taken, caplog):
    other = Caller(factories.make_node("one"))
    task_before = Task.objects.values().get(pk=taken.pk)
    theirs = send(other, report(taken, 1, Phase.NONE, Observed.EXITED, exit_code=0))
    assert (other.status, theirs.code) == (403, "not_this_nodes")
    assert (Alert.objects.get().code, Alert.objects.get().object_id) == (
        "foreign_placement",
        other.node.public_id,
    )
    assert taken.public_id in caplog.text
    nobodys = m.TaskReport(2, "task-aaaaaaaaaaaaaaaa", 1, Phase.LEAVING, Observed.GONE)
    assert (send(other, nobodys), other.status) == (theirs, 403)
    assert Alert.objects.get().times == 1  # an agent may say that of a task that was deleted
    assert Task.objects.values().get(pk=taken.pk) == task_before
    assert Claim.objects.get(task=taken).released_at is None


@pytest.mark.req("TEN-04", "OPS-11")
def test_an_agent_of_the_contract_before_hears_no_refusal_that_it_would_repeat_for_ever(agent, taken):
    gone = m.TaskReport(1, "task-aaaaaaaaaaaaaaaa", 1, Phase.LEAVING, Observed.GONE)
    mixed = m.ReportRequest("run-1", [gone, report(taken, 2)])
    assert agent.post("reports", mixed, **{m.CONTRACT_HEADER: "1"}) == m.ReportReply(2)
    assert state(taken) == ("running", "ready")


def test_one_report_that_is_refused_keeps_those_beside_it_unapplied_until_they_come_again(agent, taken):
    gone = m.TaskReport(1, "task-aaaaaaaaaaaaaaaa", 1, Phase.LEAVING, Observed.GONE)
    assert send(agent, gone, report(taken, 2)).code == "not_this_nodes"
    assert state(taken) == ("scheduling", "claimed")
    assert send(agent, report(taken, 2)) == m.ReportReply(2)
    assert state(taken) == ("running", "ready")


def test_an_empty_list_is_a_question(agent):
    assert send(agent) == m.ReportReply(0)


def test_one_that_breaks_is_marked_and_the_rest_goes_on(agent, node, taken, monkeypatch, caplog):
    apply = workloads.apply_report

    def breaks_on_two(*, node, incarnation, report, now):
        if report.sequence == 2:
            raise KeyError("what")
        apply(node=node, incarnation=incarnation, report=report, now=now)

    monkeypatch.setattr(services.workloads, "apply_report", breaks_on_two)
    loading = report(taken, 1, Phase.LOADING, Observed.STARTING)
    assert send(agent, loading, report(taken, 2), report(taken, 3)) == m.ReportReply(3)
    assert state(taken) == ("running", "ready")
    alert = Alert.objects.get(object_id=node.public_id)
    assert (alert.code, alert.params) == (
        "report_failed",
        {"node": node.name, "task": taken.public_id, "why": "KeyError"},
    )
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("attempt", [-1, 2**40])
def test_one_that_can_not_be_is_marked_too(agent, node, taken, attempt):
    impossible = m.TaskReport(1, taken.public_id, attempt, Phase.READY, Observed.READY)
    assert send(agent, impossible, report(taken, 2)) == m.ReportReply(2)
    assert state(taken) == ("running", "ready")
    assert Alert.objects.get(object_id=node.public_id).params["why"] == "Invalid"


def test_a_database_that_goes_away_in_between_loses_nothing(agent, taken, monkeypatch):
    apply = workloads.apply_report

    def away_on_two(*, node, incarnation, report, now):
        if report.sequence == 2:
            raise OperationalError("away")
        apply(node=node, incarnation=incarnation, report=report, now=now)

    reports = [report(taken, 1, Phase.LOADING, Observed.STARTING), report(taken, 2)]
    with monkeypatch.context() as patched:
        patched.setattr(services.workloads, "apply_report", away_on_two)
        assert isinstance(send(agent, *reports), m.AgentError)
        assert agent.status == 503
    assert state(taken) == ("scheduling", "loading")
    assert send(agent, *reports) == m.ReportReply(2)
    assert state(taken) == ("running", "ready")
    assert not Alert.objects.exists()


def test_texts_that_no_database_keeps_are_made_fit(agent, taken):
    why = Reason(Code.START_FAILED, {"why": "bad\0byte", "k\0ey": 1})
    lines = ["nul \0 here", "sm\u00f8rrebr\u00f8d"]
    notes = [Reason(Code.START_FAILED, {"why": "an engine answered \0"})]
    exited = report(taken, 1, Phase.NONE, Observed.EXITED, reason=why, exit_code=1, last_log_lines=lines)
    assert send(agent, msgspec.structs.replace(exited, notes=notes)) == m.ReportReply(1)
    stored = str(Task.objects.values("last_error", "reason_params").get(pk=taken.pk))
    stored += str(list(Event.objects.values_list("params", flat=True)))
    assert "an engine answered" in stored
    assert "\0" not in stored
    assert "\\x00" not in stored
    assert not Alert.objects.exists()


def test_more_than_any_agent_sends_at_once_is_refused_before_any_work(
    agent, taken, django_assert_max_num_queries
):
    made_up = [report(taken, n, Phase.LOADING, Observed.STARTING) for n in range(1, 1002)]
    with django_assert_max_num_queries(3):
        answer = send(agent, *made_up)
    assert (agent.status, answer.code) == (400, "invalid")
    assert "reports" in answer.detail
    assert "1000" in answer.detail
    assert send(agent, *made_up[:1]) == m.ReportReply(1)


@pytest.mark.req("OPS-08")
def test_secrets_in_last_lines_are_not_kept(agent, taken):
    lines = ["key sk-12345678-1234-1234-1234-123456789abc"]
    send(agent, report(taken, 1, Phase.NONE, Observed.EXITED, exit_code=1, last_log_lines=lines))
    assert "123456789abc" not in str(Task.objects.values().get(pk=taken.pk))
