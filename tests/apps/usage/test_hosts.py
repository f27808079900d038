"""Each host says what waits in its usage files, and a host that is silent is not one where nothing waits."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.db import DatabaseError

from apps.usage import flusher, hosts
from apps.usage.flusher import Flusher
from apps.usage.models import UsageFile, UsageHost
from apps.usage.selectors import oldest_waiting
from tests.apps.usage.test_flusher import PID, entry, line, open_journal
from tests.factories import NOW
from tests.stack import until

pytestmark = pytest.mark.req("OPS-09", "GW-12")
NAME = "usage-1-1-000001-abcdefabcdef.jsonl"


@pytest.mark.django_db
def test_the_oldest_that_is_no_row_yet(tmp_path: Path) -> None:
    began = NOW.timestamp() - 300
    lines = [line(n, started_at=began + n * 100) for n in range(3)]
    (tmp_path / NAME).write_bytes(b"".join(lines) + b'{"torn')
    hosts.report(tmp_path, NOW)
    row = UsageHost.objects.get()
    assert (row.name, row.updated_at, row.oldest_at.timestamp()) == (hosts.host_name(), NOW, began)
    file = UsageFile.objects.create(name=NAME, offset=len(lines[0]) * 2)
    assert oldest_waiting(tmp_path).timestamp() == began + 200
    hosts.leave(tmp_path, NOW)
    assert UsageHost.objects.get().oldest_at.timestamp() == began + 200  # left behind, and told
    file.offset += len(lines[2])
    file.save()
    assert oldest_waiting(tmp_path) is None and oldest_waiting(tmp_path / "none") is None
    hosts.leave(tmp_path, NOW)
    assert not UsageHost.objects.exists()


@pytest.mark.django_db
def test_hosts_that_said_nothing_for_long_are_forgotten(tmp_path: Path, settings) -> None:
    keep = timedelta(seconds=settings.USAGE_HOST_KEEP_S)
    UsageHost.objects.create(name="gone", updated_at=NOW - keep - timedelta(seconds=1), oldest_at=NOW)
    UsageHost.objects.create(name="silent", updated_at=NOW - keep + timedelta(seconds=1))
    hosts.report(tmp_path, NOW)
    assert set(UsageHost.objects.values_list("name", flat=True)) == {"silent", hosts.host_name()}


@pytest.mark.django_db(transaction=True)
def test_a_flusher_that_can_not_flush_says_so_and_takes_its_leave_when_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings
) -> None:
    settings.USAGE_REPORT_PERIOD_S = 0.01
    whole = flusher.flush

    def refused(*args: object, **more: object) -> None:
        raise DatabaseError("no such column")

    monkeypatch.setattr(flusher, "flush", refused)
    journal = open_journal(tmp_path)
    journal.append(entry(1))
    thread = Flusher(tmp_path, own_pid=PID, interval_s=0.01)
    thread.start()
    try:
        until(lambda: UsageHost.objects.filter(oldest_at__isnull=False).exists(), "it says what waits", 30)
        monkeypatch.setattr(flusher, "flush", whole)
        until(lambda: UsageHost.objects.filter(oldest_at=None).exists(), "nothing waits", 30)
    finally:
        thread.stop()
        journal.close()
    assert not UsageHost.objects.exists()
