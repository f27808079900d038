"""A log of 500 MB opens at once, with little memory, and can be paged back to its beginning (AGENT-10)."""

import os
import tracemalloc
from contextlib import contextmanager

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.streams import selectors
from apps.streams.models import LogChunk
from apps.streams.selectors import read_log
from apps.streams.services import append_log
from apps.tenants.scope import SYSTEM
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-10")]

MB = 1024 * 1024
PIECE = 4096  # as small as an agent's rounds make them: very many rows
LONG = 500 * MB


@pytest.fixture
def task(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path
    return factories.make_task(attempt=1)


@pytest.fixture
def long_log(task):
    """500 MB in 128,000 pieces; their texts are one sparse file, but for the last one."""
    with open(default_storage.path("hole"), "wb") as file:  # noqa: PTH123 - a storage's own path
        os.truncate(file.fileno(), PIECE)
    with open(default_storage.path("last"), "wb") as file:  # noqa: PTH123
        file.write(b"the end\n" * (PIECE // 8))
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO streams_logchunk (task_id, attempt, start, "end", file, created_at)'
            " WITH RECURSIVE piece(number) AS"
            " (SELECT 1 UNION ALL SELECT number + 1 FROM piece WHERE number < %s)"
            " SELECT %s, 1, (number - 1) * %s, number * %s,"
            " CASE WHEN number = %s THEN 'last' ELSE 'hole' END, %s FROM piece",
            [
                *(LONG // PIECE, task.pk, PIECE, PIECE, LONG // PIECE),
                connection.ops.adapt_datetimefield_value(factories.NOW),
            ],
        )
    return task


def test_a_log_of_500_mb_opens_by_its_last_pieces_with_flat_memory(
    api_client, operator, long_log, monkeypatch
):
    read = []
    whole = selectors._read_file

    def count(*args):
        data = whole(*args)
        read.append(len(data))
        return data

    monkeypatch.setattr(selectors, "_read_file", count)
    client, address = api_client(operator), f"/api/v1/tasks/{long_log.public_id}/logs"
    client.get(address)  # what is imported and prepared once is not the log's
    read.clear()
    tracemalloc.start()
    answer = client.get(address)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    piece = answer.json()
    assert piece["stored_until"] == piece["end"] == LONG and piece["text"].endswith("the end\n")
    assert sum(read) == 64 * 1024 and len(read) <= 17
    assert peak < 4 * MB


@contextmanager
def database_steps():
    """How much the database does, in hundreds of its own instructions; only SQLite counts them."""
    steps = []
    if connection.vendor == "sqlite":
        connection.connection.set_progress_handler(lambda: steps.append(1), 100)
    yield steps
    if connection.vendor == "sqlite":
        connection.connection.set_progress_handler(None, 100)


def test_a_log_of_500_mb_asks_the_database_no_more_than_a_short_one(api_client, operator, long_log):
    short, at = factories.make_task(attempt=1), 0
    for _ in range(20):
        text = "the end\n" * (PIECE // 8)
        at = append_log(task=short, attempt=1, offset=at, text=text, now=factories.NOW)
    client = api_client(operator)
    statements, steps = [], []
    for task in (short, short, long_log):  # what is prepared once comes with the first
        with CaptureQueriesContext(connection) as seen, database_steps() as done:
            assert client.get(f"/api/v1/tasks/{task.public_id}/logs").json()["text"].endswith("the end\n")
        statements.append(len(seen))
        steps.append(len(done))
    assert statements[1] == statements[2]
    assert steps[2] <= steps[1] * 2  # some levels of an index more; a walk over its rows is a thousand times


def test_any_page_costs_the_same(long_log):
    def cost(**asked):
        with CaptureQueriesContext(
            connection,
        ) as seen:
            piece = read_log(SYSTEM, long_log.public_id, **asked)
        assert piece.text
        return len(seen)

    places = [{"start": 0}, {"start": LONG // 2}, {"start": LONG - 10}, {"stop": LONG // 2}, {}]
    assert len({cost(max_bytes=MB, **place) for place in places}) == 1


def test_pages_back_from_the_end_are_the_log(task):
    text = "".join(f"\u00fc\u20ac\U0001f600 line {n}\n" for n in range(60))
    at = 0
    for i in range(0, len(text), 11):
        at = append_log(task=task, attempt=1, offset=at, text=text[i : i + 11], now=factories.NOW)
    stop, pages = None, []
    while stop is None or stop > 0:
        piece = read_log(SYSTEM, task.public_id, stop=stop, tail_bytes=50, max_bytes=50)
        assert 0 < piece.end - piece.start <= 50 and piece.end == (
            len(text.encode()) if stop is None else stop
        )
        pages.insert(0, piece.text)
        stop = piece.start
    assert "".join(pages) == text


def test_a_range_ends_where_it_was_told_to(api_client, operator, task):
    append_log(task=task, attempt=1, offset=0, text="0123\u20ac56789", now=factories.NOW)
    client, address = api_client(operator), f"/api/v1/tasks/{task.public_id}/logs"
    asked = client.get(address, {"from": 2, "to": 4}).json()
    assert (asked["start"], asked["end"], asked["text"]) == (2, 4, "23")
    half = client.get(address, {"from": 0, "to": 6}).json()  # inside of a character: it is left out
    assert (half["end"], half["text"]) == (4, "0123")
    assert client.get(address, {"to": 0}).json()["text"] == ""
    assert client.get(address, {"from": 5, "to": 2}).json()["text"] == ""
    assert client.get(address, {"to": 999}).json()["text"] == "0123\u20ac56789"
    assert client.get(address, {"to": 7, "tail_lines": 1}).json()["text"] == "0123\u20ac"
    assert client.get(address, {"to": "x"}).status_code == 400
    assert client.get(address, {"to": -1}).status_code == 400


def test_a_page_does_not_reach_behind_its_end_over_a_hole(task):
    for start, letter in ((0, "a"), (20, "c"), (30, "d")):
        name = default_storage.save(letter, ContentFile(letter * 10))
        LogChunk.objects.create(
            task=task, attempt=1, start=start, end=start + 10, file=name, created_at=factories.NOW
        )
    piece = read_log(SYSTEM, task.public_id, start=10, stop=25)
    assert (piece.start, piece.end, piece.text) == (20, 25, "ccccc")
    assert read_log(SYSTEM, task.public_id, start=10, stop=20).text == ""
