"""GET /api/v1/tasks/{id}/logs"""

import pytest

from apps.streams.services import append_log
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def task(db):
    task = factories.make_task(attempt=2)
    append_log(task=task, attempt=1, offset=0, text="old\n", now=factories.NOW)
    append_log(task=task, attempt=2, offset=0, text="one\ntwo\nthree\n", now=factories.NOW)
    return task


@pytest.fixture
def client(task, api_client):
    return api_client(factories.make_member(task.group.tenant, "viewer"))


def address(task):
    return f"/api/v1/tasks/{task.public_id}/logs"


def test_the_newest_attempt(client, task):
    answer = client.get(address(task))
    assert answer.status_code == 200
    assert answer.json() == {
        "attempt": 2,
        "start": 0,
        "end": 14,
        "text": "one\ntwo\nthree\n",
        "stored_until": 14,
        "attempts": [1, 2],
    }


def test_a_named_attempt_from_an_offset(client, task):
    answer = client.get(address(task), {"attempt": 1, "from": 2})
    assert (answer.json()["start"], answer.json()["text"]) == (2, "d\n")


def test_the_last_lines(client, task):
    assert client.get(address(task), {"tail_lines": 2}).json()["text"] == "two\nthree\n"


def test_one_answer_is_bounded(client, task, settings):
    settings.LOG_READ_MAX_BYTES = 16
    append_log(task=task, attempt=2, offset=14, text="x" * 100, now=factories.NOW)
    answer = client.get(address(task), {"from": 0}).json()
    assert (answer["end"], answer["stored_until"]) == (16, 114)


@pytest.mark.parametrize("field", ["attempt", "from", "tail_lines"])
@pytest.mark.parametrize("value", ["x", "-1", "1e3", str(10**30), "\0"])
def test_queries_that_can_not_be_name_the_field(client, task, field, value):
    answer = client.get(address(task), {field: value})
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.req("TEN-04")
def test_strangers_get_the_answer_of_a_task_that_is_not_there(task, api_client):
    stranger = api_client(factories.make_member())
    theirs = stranger.get(address(task))
    nobodys = stranger.get("/api/v1/tasks/task-aaaaaaaaaaaaaaaa/logs")
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.json() | {"request_id": ""} == nobodys.json() | {"request_id": ""}


def test_nobody_signed_in(task, api_client):
    assert api_client().get(address(task)).status_code == 401
