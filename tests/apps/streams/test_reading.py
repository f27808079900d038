"""Reading logs: offsets, tails, holes, and who may."""

from datetime import timedelta

import pytest
from django.core.files.storage import default_storage

from apps.core import leases, ticks
from apps.core.errors import NotFound
from apps.streams import services
from apps.streams.models import LogChunk
from apps.streams.selectors import read_log
from apps.streams.services import append_log
from apps.tenants.scope import SYSTEM, viewer_of
from apps.workloads.models import Task
from tests import factories

pytestmark = pytest.mark.django_db


def write(task, *pieces, attempt=1):
    at = 0
    for piece in pieces:
        at = append_log(task=task, attempt=attempt, offset=at, text=piece, now=factories.NOW)
    return task


@pytest.fixture
def task(db):
    return factories.make_task(attempt=1)


def read(task, **asked):
    return read_log(SYSTEM, task.public_id, **asked)


def test_nothing_logged_yet_is_an_empty_log(task):
    piece = read(task)
    assert (piece.attempt, piece.start, piece.end, piece.text, piece.attempts) == (1, 0, 0, "", [])


def test_from_an_offset_in_the_middle_of_a_chunk(task):
    write(task, "one\n", "two\n", "three\n")
    piece = read(task, start=5)
    assert (piece.start, piece.end, piece.text, piece.stored_until) == (5, 14, "wo\nthree\n", 14)


def test_pages_put_together_are_the_log(task):
    text = "".join(f"\u00fc\u20ac\U0001f600 {n}\n" for n in range(40))
    write(task, *(text[i : i + 9] for i in range(0, len(text), 9)))
    at, pages = 0, []
    while at < len(text.encode()):
        piece = read(task, start=at, max_bytes=16)
        assert piece.start == at
        assert 0 < piece.end - piece.start <= 16
        pages.append(piece.text)
        at = piece.end
    assert "".join(pages) == text


def test_an_offset_inside_a_character_moves_on_to_the_next(task):
    write(task, "\u20acuro")
    piece = read(task, start=1)
    assert (piece.start, piece.text) == (3, "uro")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(1, "three\n"), (2, "two\nthree\n"), (9, "one\ntwo\nthree\n"), (0, "")],
)
def test_last_lines(task, lines, expected):
    write(task, "one\nt", "wo\nthree\n")
    piece = read(task, tail_lines=lines)
    assert piece.text == expected
    assert piece.end == 14
    assert piece.start == 14 - len(expected)


def test_last_lines_of_a_log_without_a_final_break(task):
    write(task, "one\ntwo")
    assert read(task, tail_lines=1).text == "two"


def test_last_bytes_where_nothing_is_asked(task):
    write(task, "a" * 100)
    assert read(task, tail_bytes=10).start == 90


def test_beyond_the_end_is_the_end(task):
    write(task, "abc")
    piece = read(task, start=10**6)
    assert (piece.start, piece.end, piece.text) == (3, 3, "")


def test_the_newest_attempt_with_a_log_is_taken(task):
    write(task, "old", attempt=1)
    write(task, "new", attempt=3)
    piece = read(task)
    assert (piece.attempt, piece.text, piece.attempts) == (3, "new", [1, 3])
    assert read(task, attempt=1).text == "old"
    assert read(task, attempt=2).text == ""


def test_a_lost_file_is_a_hole_that_reading_goes_round(task):
    write(task, "one\n", "two\n", "three\n")
    default_storage.delete(LogChunk.objects.get(start=4).file)
    before = read(task, start=0)
    assert (before.text, before.end) == ("one\n", 4)
    behind = read(task, start=before.end)
    assert (behind.start, behind.text) == (8, "three\n")
    default_storage.delete(LogChunk.objects.get(start=8).file)
    assert (read(task, start=4).start, read(task, start=4).end) == (14, 14)


@pytest.mark.req("TEN-04")
def test_only_those_who_see_the_task_read_its_log(task):
    write(task, "private")
    tenant = task.group.tenant
    owner = factories.make_member(tenant, "owner")
    other_member = factories.make_member(tenant, "member")
    stranger = factories.make_member()
    assert read_log(viewer_of(owner), task.public_id).text == "private"
    for nobody in (stranger, other_member, None):
        with pytest.raises(NotFound):
            read_log(viewer_of(nobody), task.public_id)
    with pytest.raises(NotFound):
        read_log(SYSTEM, "task-aaaaaaaaaaaaaaaa")


def test_long_logs_lose_their_oldest_pieces_and_say_so(task):
    write(task, *["0123456789"] * 10)
    other = write(factories.make_task(), "short")
    lease = leases.acquire("streams.tidy", "me", 30)
    assert lease is not None
    assert services.drop_old_chunks(lease=lease, keep_bytes=35) == 6
    piece = read(task, start=0)
    assert (piece.start, piece.end, piece.stored_until) == (60, 100, 100)
    assert len(default_storage.listdir(f"logs/{task.public_id}/1")[1]) == 4
    assert read(other).text == "short"
    assert append_log(task=task, attempt=1, offset=100, text="more", now=factories.NOW) == 104
    assert services.drop_old_chunks(lease=lease, keep_bytes=0) == 4  # the newest stays
    assert append_log(task=task, attempt=1, offset=0, text="", now=factories.NOW) == 104


def test_logs_of_deleted_tasks_go_with_their_files(task):
    write(task, "gone")
    kept = write(factories.make_task(), "kept")
    Task.objects.filter(pk=task.pk).delete()
    assert services.drop_orphans() >= 1
    assert not default_storage.exists(f"logs/{task.public_id}")
    assert read(kept).text == "kept"


def test_tidying_before_anything_was_logged(settings, tmp_path):
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        },
    }
    assert services.drop_orphans() == 0


@pytest.mark.django_db(transaction=True)  # a tick closes its connection
def test_the_tick_does_both(task, settings):
    write(task, *["0123456789"] * 3)
    settings.LOG_KEEP_BYTES = 10
    gone = write(factories.make_task(), "gone")
    Task.objects.filter(pk=gone.pk).delete()
    done = ticks.run_tick("streams.tidy")
    assert done is not None
    assert done["chunks_dropped"] == 2
    assert done["logs_dropped"] >= 1


def test_a_flood_keeps_within_its_bound_without_a_tick(task, settings):
    settings.LOG_KEEP_BYTES = 35
    write(task, *["0123456789"] * 20)
    kept = LogChunk.objects.filter(task=task)
    assert [chunk.start for chunk in kept] == [160, 170, 180, 190]
    _, files = default_storage.listdir(f"{services.FOLDER}/{task.public_id}/1")
    assert len(files) == kept.count()
    assert read_log(SYSTEM, task.public_id).end == 200


@pytest.mark.django_db(transaction=True)  # a tick closes its connection
def test_all_logs_together_have_a_bound_and_the_oldest_pieces_go_first(task, settings):
    other = factories.make_task()
    write(task, *["a" * 5000] * 4)
    write(other, *["b" * 5000] * 4)
    LogChunk.objects.filter(task=task).update(created_at=factories.NOW - timedelta(days=1))
    settings.LOG_STORE_BYTES = 26_000
    assert ticks.run_tick("streams.tidy")["chunks_dropped"] == 3
    assert LogChunk.objects.filter(task=task).get().start == 15_000  # by it the next offset is known
    assert LogChunk.objects.filter(task=other).count() == 4
    settings.LOG_STORE_BYTES = 1
    assert ticks.run_tick("streams.tidy")["chunks_dropped"] == 3
    assert ticks.run_tick("streams.tidy")["chunks_dropped"] == 0
