"""Lines of usage files become rows exactly once, whoever dies in between (GW-12)."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from django.db import DatabaseError, OperationalError

from apps.gateway.plane.io.journal import Journal
from apps.usage import flusher
from apps.usage.files import UsageFileName, new_name, owner_lives, parse_name, process_start
from apps.usage.flusher import Flusher, flush
from apps.usage.models import UsageFile, UsageRecord
from apps.usage.record import Ending, UsageEntry

PID = os.getpid()
# No process has a pid beyond the kernel's largest.
GONE = UsageFileName(4_194_305, 1, 1, "0123456789ab")


def entry(number: int, **changes: object) -> UsageEntry:
    values = {"request_id": f"req-{number}", "started_at": 1_790_000_000.25, "path": "/v1/completions"}
    return UsageEntry(**{**values, "ending": Ending.COMPLETED, "http_status": 200, **changes})


def line(number: int, **changes: object) -> bytes:
    return msgspec.json.encode(entry(number, **changes)) + b"\n"


def open_journal(folder: Path, **changes: int) -> Journal:
    journal = Journal(folder, **{"max_file_bytes": 1 << 20, "backlog": 10, **changes})
    journal.open()
    return journal


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_every_field_arrives(tmp_path: Path) -> None:
    full = entry(
        1,
        tenant_id="ten-a",
        tenant_slug="acme",
        member="mia",
        key_id="key-a",
        key_prefix="sk-1",
        model="m",
        route_id="mr-a",
        group_id="tg-a",
        task_id="task-a",
        attempt=2,
        stream=True,
        prompt_tokens=3,
        completion_tokens=4,
        cached_tokens=1,
        estimated=True,
        ttft_ms=0,
        duration_ms=9,
    )
    journal = open_journal(tmp_path)
    journal.append(full)
    assert flush(tmp_path, own_pid=PID).rows == 1
    row = UsageRecord.objects.get()
    for name in UsageEntry.__struct_fields__:
        if name != "started_at":
            assert getattr(row, name) == getattr(full, name), name
    assert row.started_at.timestamp() == full.started_at
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_rounds_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number in range(5):
        journal.append(entry(number))
        flush(tmp_path, own_pid=PID)
        assert flush(tmp_path, own_pid=PID).rows == 0
    assert UsageRecord.objects.count() == 5
    assert UsageFile.objects.get().offset == journal.path.stat().st_size
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
def test_batches_of_any_size(tmp_path: Path, batch_bytes: int) -> None:
    (tmp_path / str(GONE)).write_bytes(b"".join(line(number) for number in range(20)))
    count = flush(tmp_path, own_pid=PID, batch_bytes=batch_bytes)
    assert (count.rows, count.removed, UsageRecord.objects.count()) == (20, 1, 20)


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_offset_and_rows_move_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path)
    journal.append(entry(1))

    def fail(self: UsageFile, **_: object) -> None:
        raise OperationalError("away between the rows and the offset")

    with monkeypatch.context() as broken:
        broken.setattr(UsageFile, "save", fail)
        with pytest.raises(OperationalError):
            flush(tmp_path, own_pid=PID)
    assert UsageRecord.objects.count() == 0
    flush(tmp_path, own_pid=PID)
    assert UsageRecord.objects.count() == 1
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_a_lost_offset_counts_nothing_twice(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(entry(1))
    flush(tmp_path, own_pid=PID)
    UsageFile.objects.all().delete()
    journal.append(entry(2))
    flush(tmp_path, own_pid=PID)
    assert sorted(UsageRecord.objects.values_list("request_id", flat=True)) == ["req-1", "req-2"]
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    whole = line(1)
    with journal.path.open("ab") as file:
        file.write(whole[:20])
    assert flush(tmp_path, own_pid=PID).rows == 0
    with journal.path.open("ab") as file:
        file.write(whole[20:])
    assert flush(tmp_path, own_pid=PID).rows == 1
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_files_of_the_dead_are_taken_over_and_removed(tmp_path: Path) -> None:
    path = tmp_path / str(GONE)
    path.write_bytes(line(1) + line(2) + line(3)[:-5])
    count = flush(tmp_path, own_pid=PID)
    assert (count.rows, count.removed) == (2, 1)
    assert not path.exists()
    assert not UsageFile.objects.exists()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_files_of_other_living_processes_are_left_to_them(tmp_path: Path) -> None:
    parent = os.getppid()
    path = tmp_path / str(UsageFileName(parent, process_start(parent), 1, "0123456789ab"))
    path.write_bytes(line(1))
    count = flush(tmp_path, own_pid=PID)
    assert (count.rows, count.removed, path.exists()) == (0, 0, True)


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_pid_that_was_given_again_is_not_the_owner(tmp_path: Path) -> None:
    reused = UsageFileName(PID, process_start(PID) - 1, 1, "0123456789ab")
    assert not owner_lives(reused)
    (tmp_path / str(reused)).write_bytes(line(1))
    count = flush(tmp_path, own_pid=PID)
    assert (count.rows, count.removed) == (1, 1)


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_full_files_are_followed_by_new_ones_and_removed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, max_file_bytes=500)
    for number in range(10):
        journal.append(entry(number))
    assert len(list(tmp_path.iterdir())) > 2
    flush(tmp_path, own_pid=PID)
    assert UsageRecord.objects.count() == 10
    assert [path for path in tmp_path.iterdir()] == [journal.path]
    journal.close()


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_lines_that_are_no_records_are_put_aside(tmp_path: Path) -> None:
    path = tmp_path / str(GONE)
    path.write_bytes(line(1) + b"{not json}\n" + b'{"request_id": 5}\n' + line(2))
    count = flush(tmp_path, own_pid=PID)
    assert (count.rows, count.rejected) == (2, 2)
    assert path.with_suffix(".rejected").read_bytes() == b'{not json}\n{"request_id": 5}\n'


@pytest.mark.req("GW-12")
@pytest.mark.django_db
def test_one_bad_record_costs_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = UsageRecord.objects
    insert = manager.bulk_create

    def refuse_bad(rows: list[UsageRecord], **options: object) -> object:
        if any(row.request_id == "req-2" for row in rows):
            raise DatabaseError("value out of range")
        return insert(rows, **options)

    monkeypatch.setattr(manager, "bulk_create", refuse_bad)
    path = tmp_path / str(GONE)
    path.write_bytes(line(1) + line(2) + line(3))
    count = flush(tmp_path, own_pid=PID)
    assert count.rejected == 1
    assert sorted(UsageRecord.objects.values_list("request_id", flat=True)) == ["req-1", "req-3"]
    assert json.loads(path.with_suffix(".rejected").read_bytes())["request_id"] == "req-2"


@pytest.mark.django_db
def test_strange_files_and_a_missing_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert flush(tmp_path, own_pid=PID) == flusher.FlushCount()
    assert flush(tmp_path / "none", own_pid=PID) == flusher.FlushCount()
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.req("GW-12")
@pytest.mark.django_db(transaction=True)
def test_thread_flushes_and_once_more_at_its_end(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    thread = Flusher(tmp_path, own_pid=PID, interval_s=60.0)
    thread.start()
    journal.append(entry(1))
    thread.stop()
    assert UsageRecord.objects.count() == 1
    journal.close()


# ---- the writer ----


@pytest.mark.req("GW-12")
def test_names_tell_their_owner() -> None:
    name = new_name()
    assert parse_name(str(name)) == name
    assert owner_lives(name)
    assert parse_name("usage-1-2.jsonl") is None
    assert process_start(4_194_305) is None


@pytest.mark.req("GW-12")
def test_records_wait_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path, backlog=2)
    with monkeypatch.context() as full:
        write = os.write
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        assert not journal.append(entry(1))
        assert not journal.append(entry(2))
        assert not journal.append(entry(3))
        assert (journal.waiting, journal.lost) == (2, 1)
    assert journal.path.read_bytes() == b"", "half a record must not stay"
    assert journal.flush()
    assert journal.path.read_bytes() == line(2) + line(3)
    journal.close()


@pytest.mark.req("GW-12")
def test_of_records_written_at_once_those_that_found_room_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path)
    for number in range(1, 5):
        journal.put(entry(number))
    assert (journal.waiting, journal.path.read_bytes()) == (4, b"")
    with monkeypatch.context() as full:
        write = os.write
        room = len(line(1) + line(2)) + 7
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:room]))
        assert not journal.flush()
        assert journal.waiting == 2
    assert journal.path.read_bytes() == line(1) + line(2), "half a record must not stay"
    assert journal.append(entry(5))
    assert journal.path.read_bytes() == b"".join(map(line, range(1, 6)))
    journal.close()


@pytest.mark.req("GW-12")
def test_records_that_are_laid_ready_are_lost_only_where_the_file_fails(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, backlog=3)
    for number in range(1, 9):
        journal.put(entry(number))
    assert journal.flush()
    assert (journal.waiting, journal.lost) == (0, 0)
    assert journal.path.read_bytes() == b"".join(map(line, range(1, 9)))
    journal.close()


@pytest.mark.req("GW-12")
def test_without_room_in_memory_a_record_is_lost_only_where_the_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path, backlog=0)
    journal.put(entry(1))
    assert journal.append(entry(2))
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: 0)
        journal.put(entry(3))
    assert (journal.waiting, journal.lost) == (0, 1)
    assert journal.path.read_bytes() == line(1) + line(2)
    journal.close()
