"""POST /agent/v1/heartbeat: the list by hash, the newest run of the agent, a cheap steady state."""

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from agent.contract import messages as m
from agent.contract import wire
from agent.contract.states import Desired, Observed
from apps.agentlink import services
from apps.core.clock import utc_now
from apps.fleet.models import Liveness
from apps.workloads.models import Claim, Task
from tests import factories
from tests.apps.agentlink.conftest import Caller, heartbeat_of

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-01")]


@pytest.fixture
def lately_seen(node):
    Liveness.objects.filter(node=node).update(last_seen_at=utc_now())


def test_a_node_without_work_gets_a_complete_empty_list(agent, node):
    reply = agent.post("heartbeat", heartbeat_of(node))
    assert reply == m.HeartbeatReply(wire.hash_desired([]), complete=True, tasks=[])


def test_the_list_comes_whole_until_the_agent_has_it(agent, node, placed):
    reply = agent.post("heartbeat", heartbeat_of(node))
    assert reply.complete
    assert [(t.task_id, t.attempt, t.desired) for t in reply.tasks] == [(placed.public_id, 1, Desired.RUN)]
    again = agent.post("heartbeat", heartbeat_of(node, sequence=2, desired_hash=reply.desired_hash))
    assert again == m.HeartbeatUnchanged(reply.desired_hash)


def test_another_nodes_work_is_not_in_the_list(agent, node, placed):
    other = factories.make_node()
    reply = Caller(other).post("heartbeat", heartbeat_of(other))
    assert reply.tasks == []


def test_a_list_that_can_not_be_read_is_no_empty_list(agent, node, placed, monkeypatch):
    def away(node):
        raise OperationalError("away")

    monkeypatch.setattr(services, "desired_of", away)
    answer = agent.post("heartbeat", heartbeat_of(node))
    assert isinstance(answer, m.AgentError)
    assert agent.status == 503


@pytest.mark.req("AGENT-02")
def test_an_older_run_of_the_agent_is_told_so(agent, node, lately_seen):
    agent.post("heartbeat", heartbeat_of(node, incarnation="run-2", started_at=200.0))
    answer = agent.post("heartbeat", heartbeat_of(node, incarnation="run-1", started_at=100.0, sequence=99))
    assert isinstance(answer, m.AgentError)
    assert (agent.status, answer.code) == (409, "claim_superseded")
    assert Liveness.objects.get(node=node).incarnation == "run-2"


@pytest.mark.req("AGENT-02")
def test_the_newest_run_wins_at_once(agent, node, lately_seen):
    agent.post("heartbeat", heartbeat_of(node))
    reply = agent.post("heartbeat", heartbeat_of(node, incarnation="run-2", started_at=200.0))
    assert isinstance(reply, m.HeartbeatReply)


@pytest.mark.req("AGENT-02")
def test_another_machine_with_the_same_credential_is_refused(agent, node):
    answer = agent.post("heartbeat", heartbeat_of(node, machine_id="somebody-else"))
    assert isinstance(answer, m.AgentError)
    assert (agent.status, answer.code) == (403, "machine_mismatch")


def claimed_and_running(node, **fields):
    task = factories.make_task(state="running", phase="ready", attempt=1, node=node, **fields)
    factories.make_claim(task, node, incarnation="run-1")
    return task


@pytest.mark.req("AGENT-02")
def test_what_a_claimed_run_lacks_is_gone_and_a_repeated_heartbeat_changes_nothing(agent, node, lately_seen):
    task = claimed_and_running(node)
    running = [m.RunningReport(task.public_id, 1, Observed.READY)]
    agent.post("heartbeat", heartbeat_of(node, sequence=5, running=running))
    assert Claim.objects.get(task=task).released_at is None
    agent.post("heartbeat", heartbeat_of(node, sequence=5, running=[]))  # overtaken: not the present list
    assert Claim.objects.get(task=task).released_at is None
    agent.post("heartbeat", heartbeat_of(node, sequence=6, running=[]))
    assert Claim.objects.get(task=task).released_at is not None
    assert Task.objects.get(pk=task.pk).state != "running"


@pytest.mark.parametrize("changes", [{"incarnation": ""}, {"incarnation": "x" * 65}, {"sequence": -1}])
def test_values_that_no_row_can_hold_are_named(agent, node, changes):
    answer = agent.post("heartbeat", heartbeat_of(node, **changes))
    assert isinstance(answer, m.AgentError)
    assert agent.status == 400
    assert next(iter(changes)) in answer.detail


def test_a_steady_heartbeat_is_cheap(agent, node, placed):
    reply = agent.post("heartbeat", heartbeat_of(node))
    for sequence in (2, 3):
        beat = heartbeat_of(node, sequence=sequence, desired_hash=reply.desired_hash)
        with CaptureQueriesContext(
            connection,
        ) as seen:
            answer = agent.post("heartbeat", beat)
        assert isinstance(answer, m.HeartbeatUnchanged)
    queries = [q["sql"] for q in seen if not q["sql"].startswith(("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT"))]
    assert len(queries) <= 9, "\n".join(queries)
    writes = [sql for sql in queries if not sql.startswith("SELECT")]
    assert len(writes) == 1, "only when it was last seen: " + "\n".join(writes)


@pytest.mark.req("AGENT-16")
def test_whence_a_direct_dial_is_said_is_asked_of_no_proxy_that_nobody_named(agent, node, settings):
    beat = heartbeat_of(node)
    settings.TRUSTED_PROXIES = []
    answer = agent.post("heartbeat", beat, **{"X-Forwarded-For": "10.1.2.3"})
    assert (agent.status, answer.code) == (400, "invalid")
    assert "dial.host" in answer.detail and "127.0.0.1" in answer.detail and 'dial = "door"' in answer.detail
    settings.TRUSTED_PROXIES = ["127.0.0.1"]  # then the server's entry has put the real one in its place
    agent.post("heartbeat", beat, **{"X-Forwarded-For": "127.0.0.1"})
    assert agent.status == 200
