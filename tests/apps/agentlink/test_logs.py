"""POST /agent/v1/logs: a node appends to the attempts that it holds or held, and to no others."""

import pytest

from agent.contract import messages as m
from apps.fleet.models import Liveness
from apps.streams.models import LogChunk
from apps.streams.selectors import read_log
from apps.tenants.scope import SYSTEM
from apps.workloads.models import Claim
from tests import factories
from tests.apps.agentlink.conftest import Caller

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-10")]


def send(agent, task, offset, text, attempt=1, incarnation="run-1"):
    return agent.post("logs", m.LogRequest(incarnation, task.public_id, attempt, offset, text))


def test_pieces_repeats_and_gaps(agent, placed):
    assert send(agent, placed, 0, "one\n") == m.LogReply(4)
    assert send(agent, placed, 0, "one\ntwo\n") == m.LogReply(8)
    assert send(agent, placed, 99, "later\n") == m.LogReply(8)
    assert read_log(SYSTEM, placed.public_id).text == "one\ntwo\n"


def test_the_last_lines_of_an_attempt_that_is_over_still_come(agent, placed):
    Claim.objects.filter(task=placed).update(released_at=factories.NOW)
    assert send(agent, placed, 0, "bye\n") == m.LogReply(4)


@pytest.mark.req("TEN-04")
def test_another_nodes_task_and_no_task_look_alike(placed):
    other = Caller(factories.make_node())
    theirs = send(other, placed, 0, "forged\n")
    assert (other.status, theirs.code) == (403, "not_this_nodes")
    nobodys = other.post("logs", m.LogRequest("run-1", "task-aaaaaaaaaaaaaaaa", 1, 0, "x"))
    assert (other.status, nobodys) == (403, theirs)
    assert other.post("logs", m.LogRequest("run-1", "../../etc\0", 1, 0, "x")) == theirs
    assert not LogChunk.objects.exists()
    old = {m.CONTRACT_HEADER: "1"}  # an agent that would repeat it for ever for a 403
    assert (
        other.post("logs", m.LogRequest("run-1", placed.public_id, 1, 0, "x"), **old).code == "claim_unknown"
    )
    assert other.status == 404


def test_another_attempt_is_not_this_one(agent, placed):
    assert send(agent, placed, 0, "x", attempt=2).code == "not_this_nodes"


@pytest.mark.req("AGENT-02")
def test_an_older_run_of_the_agent_writes_nothing(agent, node, placed):
    Liveness.objects.filter(node=node).update(incarnation="run-2")
    answer = send(agent, placed, 0, "x")
    assert (agent.status, answer.code) == (409, "claim_superseded")
    assert not LogChunk.objects.exists()


def test_a_negative_offset_is_named(agent, placed):
    answer = send(agent, placed, -1, "x")
    assert agent.status == 400
    assert "offset" in answer.detail


def test_an_offset_beyond_every_row_is_a_gap(agent, placed):
    assert send(agent, placed, 2**62, "x") == m.LogReply(0)


def test_a_gap_that_is_lost_for_good_is_closed_by_the_line_that_says_so(agent, placed):
    record = "[many lines are missing here]\n"

    def lost(start, lost_from):
        message = m.LogRequest("run-1", placed.public_id, 1, start, record, lost_from)
        return agent.post("logs", message)

    assert send(agent, placed, 0, "one\n") == m.LogReply(4)
    assert lost(2000, 3) == m.LogReply(4)  # not where this log ends: it is told where that is
    end = 2000 + len(record)
    assert lost(2000, 4) == m.LogReply(end)
    assert lost(2000, 4) == m.LogReply(end)  # its answer was lost
    assert send(agent, placed, end, "two\n") == m.LogReply(end + 4)
    first = read_log(SYSTEM, placed.public_id, start=0, max_bytes=4)
    assert first.text == "one\n"
    rest = read_log(SYSTEM, placed.public_id, start=first.end)
    assert (rest.start, rest.text) == (2000, record + "two\n")


@pytest.mark.parametrize("offset", [2**63 - 1, 2**80])
def test_a_gap_ends_where_the_rows_can_tell(agent, placed, offset):
    answer = agent.post("logs", m.LogRequest("run-1", placed.public_id, 1, offset, "x", 0))
    assert (agent.status, "offset" in answer.detail) == (400, True)
