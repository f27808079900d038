"""The live log over a websocket: replay, follow, resume, scope, back-pressure."""

import asyncio

import pytest
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser
from django.core.files.storage import default_storage

from apps.core import hints
from apps.streams.consumers import BAD_QUERY, NOT_FOUND, NOT_SIGNED_IN, LogConsumer
from apps.streams.routing import websocket_urlpatterns
from apps.streams.services import append_log, log_group
from apps.tenants.models import Membership
from tests import factories
from tests.apps.streams.sockets import Socket

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("AGENT-10")]
in_db = database_sync_to_async


@pytest.fixture(autouse=True)
def look_by_itself_late(settings):
    """So that what arrives in a test arrives by a hint; one test turns this round."""
    settings.LOG_POLL_S = 60.0


@pytest.fixture
def task():
    return factories.make_task(attempt=1)


@pytest.fixture
def owner(task):
    return factories.make_member(task.group.tenant, "owner")


def append(task, offset, text, attempt=1):
    return append_log(task=task, attempt=attempt, offset=offset, text=text, now=factories.NOW)


def make_socket(user, task_id, query=""):
    socket = Socket(URLRouter(websocket_urlpatterns), f"/ws/tasks/{task_id}/logs{query}")
    socket.scope["user"] = user
    return socket


async def start(user, task, query=""):
    socket = make_socket(user, task.public_id, query)
    assert await socket.open() is True
    return socket


async def test_replays_and_then_follows(task, owner):
    await in_db(append)(task, 0, "one\n")
    socket = await start(owner, task)
    assert await socket.hear() == {"attempt": 1, "start": 0, "end": 4, "text": "one\n"}
    await in_db(append)(task, 4, "two\n")
    assert await socket.hear() == {"attempt": 1, "start": 4, "end": 8, "text": "two\n"}
    await socket.hang_up()


async def test_resumes_from_an_offset(task, owner):
    await in_db(append)(task, 0, "one\ntwo\n")
    socket = await start(owner, task, "?attempt=1&from=4")
    assert (await socket.hear())["text"] == "two\n"
    await socket.hang_up()


@pytest.mark.parametrize("task_id", ["x" * 200, "task-!", "\U0001f4a9", "a\0b", "..", "task-" + "a" * 17])
async def test_what_can_be_no_task_is_not_there_and_no_fault(task_id, owner):
    socket = make_socket(owner, task_id)
    assert await socket.open() is True
    assert await socket.close_code() == NOT_FOUND


@pytest.mark.parametrize("number", ["-1", "x", "\u00b2", "9" * 5000, str(2**63)])
async def test_a_wrong_number_is_told(number, task, owner):
    socket = make_socket(owner, task.public_id, f"?from={number}")
    assert await socket.open() is True
    assert await socket.close_code() == BAD_QUERY


async def test_waits_for_a_log_that_has_not_begun(task, owner):
    socket = await start(owner, task)
    assert await socket.receive_nothing()
    await in_db(append)(task, 0, "first\n")
    assert (await socket.hear())["text"] == "first\n"
    await socket.hang_up()


async def test_a_lost_hint_only_delays(task, owner, settings, monkeypatch):
    settings.LOG_POLL_S = 0.05
    monkeypatch.setattr(hints, "announce", lambda group, message: None)
    socket = await start(owner, task)
    await in_db(append)(task, 0, "one\n")
    assert (await socket.hear())["text"] == "one\n"
    await in_db(append)(task, 4, "two\n")
    assert (await socket.hear())["text"] == "two\n"
    await socket.hang_up()


async def test_repeated_and_wrong_hints_double_nothing(task, owner):
    await in_db(append)(task, 0, "one\n")
    socket = await start(owner, task)
    assert (await socket.hear())["text"] == "one\n"
    for end in (4, 4, 999, 0):
        message = {"type": "log.more", "attempt": 1, "end": end}
        await get_channel_layer().group_send(log_group(task.public_id), message)
    assert await socket.receive_nothing(timeout=0.3)
    await socket.hang_up()


async def test_long_logs_come_in_messages_of_bounded_size(task, owner, settings):
    settings.LOG_MESSAGE_MAX_BYTES = 100
    text = "\u00fc\u20ac\U0001f600 line\n" * 60
    await in_db(append)(task, 0, text)
    socket = await start(owner, task)
    got, at = "", 0
    while at < len(text.encode()):
        message = await socket.hear()
        assert message["start"] == at
        assert len(message["text"].encode()) <= 100
        got, at = got + message["text"], message["end"]
    assert got == text
    await socket.hang_up()


async def test_follows_into_the_next_attempt_where_none_is_named(task, owner):
    await in_db(append)(task, 0, "old\n", attempt=1)
    free = await start(owner, task)
    bound = await start(owner, task, "?attempt=1")
    assert (await free.hear())["attempt"] == 1
    assert (await bound.hear())["attempt"] == 1
    await in_db(append)(task, 0, "new\n", attempt=2)
    assert await free.hear() == {"attempt": 2, "start": 0, "end": 4, "text": "new\n"}
    assert await bound.receive_nothing(timeout=0.3)
    await free.hang_up()
    await bound.hang_up()


async def test_goes_round_a_lost_file(task, owner):
    await in_db(append)(task, 0, "one\n")
    await in_db(append)(task, 4, "two\n")
    _, files = default_storage.listdir(f"logs/{task.public_id}/1")
    default_storage.delete(f"logs/{task.public_id}/1/{min(files)}")
    socket = await start(owner, task)
    assert await socket.hear() == {"attempt": 1, "start": 4, "end": 8, "text": "two\n"}
    await socket.hang_up()


@pytest.mark.req("TEN-04")
async def test_strangers_are_told_that_there_is_no_such_task(task):
    await in_db(append)(task, 0, "private\n")
    stranger = await in_db(factories.make_member)()
    for task_id in (task.public_id, "task-aaaaaaaaaaaaaaaa", "nonsense"):
        socket = make_socket(stranger, task_id)
        assert await socket.open() is True
        assert await socket.close_code() == NOT_FOUND


async def test_nobody_signed_in(task):
    for user in (AnonymousUser(), None):
        socket = make_socket(user, task.public_id)
        assert await socket.open() is True
        assert await socket.close_code() == NOT_SIGNED_IN


@pytest.mark.parametrize("query", ["?from=-1", "?from=x", "?attempt=1.5", "?from=99999999999999999999"])
async def test_a_query_that_can_not_be(task, owner, query):
    socket = make_socket(owner, task.public_id, query)
    assert await socket.open() is True
    assert await socket.close_code() == BAD_QUERY


@pytest.mark.req("TEN-02", "TEN-04")
async def test_who_loses_sight_of_the_task_hears_no_more(task, owner):
    await in_db(append)(task, 0, "one\n")
    socket = await start(owner, task)
    assert (await socket.hear())["text"] == "one\n"
    await in_db(Membership.objects.filter(user=owner).delete)()
    await in_db(append)(task, 4, "secret\n")
    assert await socket.close_code() == NOT_FOUND


async def test_an_unexpected_error_closes_instead_of_going_silent(task, owner, monkeypatch):
    def broken(self, attempt, at):
        raise RuntimeError("boom")

    monkeypatch.setattr(LogConsumer, "_read", broken)
    socket = await start(owner, task)
    assert await socket.close_code() == 1011


async def test_the_next_piece_is_read_when_the_last_is_on_its_way(task, owner, settings, monkeypatch):
    """Back-pressure: a browser that does not read holds the reading up, not the memory."""
    settings.LOG_MESSAGE_MAX_BYTES = 16
    await in_db(append)(task, 0, "x" * 160)
    reads, gate = [], asyncio.Event()
    read, send = LogConsumer._read, LogConsumer.send

    def counting(self, attempt, at):
        reads.append(at)
        return read(self, attempt, at)

    async def held(self, *args, **kwargs):
        await gate.wait()
        await send(self, *args, **kwargs)

    monkeypatch.setattr(LogConsumer, "_read", counting)
    monkeypatch.setattr(LogConsumer, "send", held)
    socket = await start(owner, task)
    assert await socket.receive_nothing(timeout=0.3)
    assert reads == [0]
    gate.set()
    assert [(await socket.hear())["end"] for _ in range(10)] == list(range(16, 161, 16))
    await socket.hang_up()
