"""Appending to the log store: nothing lost, nothing doubled, whatever is repeated or cut."""

import threading

import pytest
from django.core.files.storage import default_storage
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.errors import Invalid, NotFound, Unavailable
from apps.streams.models import LogChunk
from apps.streams.selectors import read_log
from apps.streams.services import append_log
from apps.tenants.scope import SYSTEM
from apps.workloads.models import Task
from tests import factories
from tests.examples import examples

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-10")]


def add(task, text, offset, attempt=1):
    return append_log(task=task, attempt=attempt, offset=offset, text=text, now=factories.NOW)


def stored(task, attempt=1):
    return read_log(SYSTEM, task.public_id, attempt=attempt, start=0, max_bytes=10**7).text


def test_pieces_in_a_row():
    task = factories.make_task()
    assert add(task, "one\n", 0) == 4
    assert add(task, "zwei ü\n", 4) == 12  # ü counts two bytes
    assert stored(task) == "one\nzwei ü\n"


def test_a_repeated_piece_adds_nothing():
    task = factories.make_task()
    add(task, "line\n", 0)
    assert add(task, "line\n", 0) == 5
    assert LogChunk.objects.count() == 1
    assert stored(task) == "line\n"


def test_an_overlapping_piece_adds_what_is_new():
    task = factories.make_task()
    add(task, "ab\u00fc", 0)
    assert add(task, "b\u00fccd", 1) == 6
    assert stored(task) == "ab\u00fccd"


def test_a_gap_is_answered_with_the_offset_to_send_from():
    task = factories.make_task()
    add(task, "abc", 0)
    assert add(task, "later", 10) == 3
    assert stored(task) == "abc"


def test_an_empty_piece_asks_where_to_go_on():
    task = factories.make_task()
    assert add(task, "", 0) == 0
    add(task, "abc", 0)
    assert add(task, "", 0) == 3
    assert LogChunk.objects.count() == 1


def test_attempts_are_kept_apart():
    task = factories.make_task()
    add(task, "first", 0, attempt=1)
    assert add(task, "second", 0, attempt=2) == 6
    assert (stored(task, 1), stored(task, 2)) == ("first", "second")


def test_a_negative_offset_is_refused_by_name():
    with pytest.raises(Invalid) as caught:
        add(factories.make_task(), "x", -1)
    assert [error.field for error in caught.value.errors] == ["offset"]


def test_text_that_differs_from_what_is_there_never_breaks_reading():
    """A cut inside a character, by an agent that sends another text for the same bytes."""
    task = factories.make_task()
    add(task, "a", 0)
    assert add(task, "\u00e4b", 0) == 3
    assert stored(task) == "a\ufffdb"


@pytest.mark.req("OPS-08")
def test_secrets_are_masked_and_offsets_stay_those_of_the_sent_text():
    task = factories.make_task()
    secret = "sk-12345678-1234-1234-1234-123456789abc"
    sent = f"using key {secret} now\n"
    assert add(task, sent, 0) == len(sent)
    assert add(task, "next\n", len(sent)) == len(sent) + 5
    text = stored(task)
    assert secret not in text
    assert len(text.encode()) == len(sent) + 5
    assert text.endswith(" now\nnext\n")
    with default_storage.open(LogChunk.objects.earliest("start").file) as file:
        assert secret.encode() not in file.read()


def test_the_stored_name_is_made_here_and_stays_in_its_folder():
    task = factories.make_task()
    add(task, "x", 0)
    assert LogChunk.objects.get().file.startswith(f"logs/{task.public_id}/1/")


@pytest.mark.django_db(transaction=True)  # foreign keys are checked at the end of a transaction
def test_a_task_that_was_deleted_meanwhile_is_not_found_and_leaves_no_file():
    task = factories.make_task()
    Task.objects.filter(pk=task.pk).delete()
    with pytest.raises(NotFound):
        add(task, "x", 0)
    assert default_storage.listdir(f"logs/{task.public_id}/1")[1] == []


def test_a_full_disk_is_said_as_such_and_nothing_counts(monkeypatch):
    task = factories.make_task()

    def full(*args):
        raise OSError(28, "No space left on device", "/secret/place")

    monkeypatch.setattr(default_storage, "save", full)
    with pytest.raises(Unavailable):
        add(task, "x", 0)
    assert not LogChunk.objects.exists()
    monkeypatch.undo()
    assert add(task, "x", 0) == 1


@pytest.mark.django_db(transaction=True)
def test_the_same_piece_from_many_threads_counts_once():
    task = factories.make_task()
    text = "0123456789\n" * 50
    answers, start = [], threading.Barrier(6)

    def send():
        try:
            start.wait()
            answers.append(add(task, text, 0))
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [len(text)] * 6
    assert stored(task) == text
    assert len(default_storage.listdir(f"logs/{task.public_id}/1")[1]) == LogChunk.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_different_cuts_of_one_log_from_many_threads_give_it_exactly():
    task = factories.make_task()
    text = "".join(f"line {n} \u00fc\u20ac\n" for n in range(60))
    raw = text.encode()
    lines = text.splitlines(keepends=True)

    def send(step):
        try:
            at = 0
            while at < len(raw):
                done = len(raw[:at].decode().splitlines(keepends=True))
                piece = "".join(lines[done : done + step])
                begin = len("".join(lines[:done]).encode())
                at = add(task, piece, begin)
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(step,)) for step in (7, 11, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(task) == text


PLAIN = st.text(st.sampled_from("ab \n\u00fc\u20ac\U0001f600\t"), max_size=60)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=PLAIN, data=st.data())
def test_any_split_repeat_and_reorder_with_retry_gives_exactly_the_text(text, data):
    """An agent that loses answers, is restarted from zero or sends pieces in any order."""
    task = factories.make_task()
    at = [len(text[:n].encode()) for n in range(len(text) + 1)]  # bytes before each character
    for _ in range(data.draw(st.integers(0, 12), label="wild pieces")):
        first = data.draw(st.integers(0, len(text)))
        last = data.draw(st.integers(first, len(text)))
        answer = add(task, text[first:last], at[first])
        assert answer in at
        assert stored(task) == text.encode()[:answer].decode()
    place = 0
    while place < len(text):  # then as it should be: from where the server says
        step = data.draw(st.integers(1, 20))
        place = at.index(add(task, text[place : place + step], at[place]))
    assert stored(task) == text


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_text_keeps_its_length_in_bytes(text):
    task = factories.make_task()
    assert add(task, text, 0) == len(text.encode())
    assert len(stored(task).encode()) == len(text.encode())
