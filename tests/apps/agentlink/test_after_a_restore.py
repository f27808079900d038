"""After a restore no agent ends a container until the operator says so (OPS-03)."""

import pytest
from django.core.management import call_command
from django.db import connection

from agent.contract import messages as m
from agent.contract.states import Desired, Observed
from agent.supervisor.desired import DesiredList
from apps.core import holds
from tests import factories
from tests.apps.agentlink.conftest import heartbeat_of

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-03", "AGENT-09")]


@pytest.fixture
def restored(db):
    with connection.cursor() as cursor:
        for statement in holds.settling("restore of somebody's test"):
            cursor.execute(statement)


@pytest.fixture
def stopping(node):
    task = factories.make_task(state="stopping", phase="leaving", attempt=1, node=node)
    factories.make_claim(task, node, incarnation="run-1")
    return task


def test_nothing_is_told_to_stop_and_no_list_is_complete(agent, node, placed, stopping, restored):
    running = [m.RunningReport(stopping.public_id, 1, Observed.READY)]
    reply = agent.post("heartbeat", heartbeat_of(node, running=running))
    assert not reply.complete
    assert [(task.task_id, task.desired) for task in reply.tasks] == [(placed.public_id, Desired.RUN)]


def test_an_agent_counts_no_absence_and_asks_for_the_whole_list_each_time(agent, node, restored):
    """What the rows don't know runs there: the agent removes it after two complete lists without it."""
    held, stranger = DesiredList(), ("task-of-another-time", 1)
    for sequence in range(1, 6):
        beat = heartbeat_of(node, sequence=sequence, desired_hash=held.hash)
        held.take(agent.post("heartbeat", beat))
    assert held.absent_lists(stranger) == 0
    call_command("resume_removals")
    for sequence in range(6, 8):
        held.take(agent.post("heartbeat", heartbeat_of(node, sequence=sequence, desired_hash=held.hash)))
    assert held.absent_lists(stranger) == 2


def test_a_newer_attempt_does_not_end_the_older_one_that_runs_there(agent, node, restored):
    task = factories.make_task(state="scheduling", phase="placed", attempt=4, node=node)
    factories.make_claim(task, node)
    older = [m.RunningReport(task.public_id, 3, Observed.READY)]
    assert agent.post("heartbeat", heartbeat_of(node, running=older)).tasks == []
    call_command("resume_removals")
    reply = agent.post("heartbeat", heartbeat_of(node, sequence=2, running=older))
    assert [(listed.task_id, listed.attempt) for listed in reply.tasks] == [(task.public_id, 4)]


def test_resuming_tells_the_whole_list_again(agent, node, stopping, restored, capsys):
    call_command("resume_removals")
    assert "Removals go on." in capsys.readouterr().out
    running = [m.RunningReport(stopping.public_id, 1, Observed.READY)]
    reply = agent.post("heartbeat", heartbeat_of(node, running=running))
    assert reply.complete
    assert [(task.task_id, task.desired) for task in reply.tasks] == [(stopping.public_id, Desired.STOP)]
    call_command("resume_removals")
    assert "were not waiting" in capsys.readouterr().out
