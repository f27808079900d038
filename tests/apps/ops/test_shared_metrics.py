"""Several processes of a host, one answer: whichever is asked sums up all of them (OPS-04)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from apps.core import metric_slots
from apps.ops import metrics, row_metrics
from tests.apps.ops.test_metrics import read
from tests.apps.ops.test_production_settings import start
from tests.stack import ROOT

pytestmark = pytest.mark.req("OPS-04")
TURNED_AWAY = ("heteroflow_gateway_requests_total", (("ending", "turned_away"), ("status", "401")))
IN_FLIGHT = ("heteroflow_gateway_in_flight", (("model", "m"),))
ASKED = (
    "heteroflow_http_requests_total",
    (("method", "GET"), ("route", "x"), ("status", "2xx")),
)
SHARE = """
import os, sys
from pathlib import Path
from apps.core import metric_slots
metric_slots.share(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
"""
GATEWAY = (
    "from apps.gateway.plane.io import meters; meters.count_turned_away(401)\n"
    "meters.note_in_flight({'m': 1})\n"
)
API = "from apps.core import request_metrics; request_metrics.REQUESTS.labels('GET', 'x', '2xx').inc()\n"


@contextmanager
def process(folder: Path, *work: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has done the work and goes on living."""
    code = SHARE + "".join(work) + "print('done', flush=True); sys.stdin.read()"
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, metrics.FOLDER: str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "done\n"
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path))
    monkeypatch.setattr(row_metrics, "read_rows", lambda now: [])
    return tmp_path


def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return read(generate_latest(metrics.registry()).decode())


def slots(folder: Path) -> set[str]:
    return {path.stem.rpartition("_")[2] for path in folder.glob("*.db")}


def test_a_scrape_is_the_sum_over_all(folder: Path) -> None:
    with process(folder, GATEWAY), process(folder, GATEWAY, API), process(folder, API):
        found = scrape()
        assert (found[TURNED_AWAY], found[IN_FLIGHT], found[ASKED]) == (2, 2, 2)
        assert len(slots(folder)) == 3


FULL_AFTER = """
import errno
real, left = os.posix_fallocate, [{rooms}]
def posix_fallocate(file, start, size):
    if not left[0] and not os.readlink(f"/proc/self/fd/{{file}}").startswith("/memfd:"):
        raise OSError(errno.ENOSPC, "No space left on device")
    left[0] -= bool(left[0])
    real(file, start, size)
os.posix_fallocate = posix_fallocate
"""
MANY = """
for number in range(300):
    request_metrics.REQUESTS.labels('GET', f'many/{number}', '2xx').inc()
"""


@pytest.mark.parametrize(("rooms", "shown"), [(0, None), (60, 1.0)])
def test_a_full_disk_ends_no_process(folder: Path, rooms: int, shown: float | None) -> None:
    """The system kills who writes into a mapped file for which the disk has no block left. Files grow in the
    middle of the work: 300 values are more than one block."""
    with process(folder, FULL_AFTER.format(rooms=rooms), API, MANY, API):
        found = scrape()
        assert found.get(ASKED) == shown, "what was counted before"
        assert len([key for key in found if "many/" in str(key)]) < 300


def test_the_room_for_a_value_is_taken_before_it_is_written(folder: Path) -> None:
    """Not a hole: that is what the system kills for."""
    with process(folder, API, MANY):
        for file in folder.glob("counter_*.db"):
            used = int.from_bytes(file.read_bytes()[:4], sys.byteorder)
            assert used > 4096
            assert file.stat().st_blocks * 512 >= used


def test_what_one_that_was_killed_counted_stays_and_what_it_held_goes(folder: Path) -> None:
    with process(folder, GATEWAY):
        with process(folder, GATEWAY) as killed:
            assert scrape()[IN_FLIGHT] == 2
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        found = scrape()
        assert (found[TURNED_AWAY], found[IN_FLIGHT]) == (2, 1)
        with process(folder, GATEWAY):  # its successor goes on counting in the same files
            found = scrape()
            assert (found[TURNED_AWAY], found[IN_FLIGHT]) == (3, 2)
            assert len(slots(folder)) == 2


def test_a_whole_set_that_starts_anew_finds_the_folder_empty(folder: Path) -> None:
    with process(folder, GATEWAY, API):
        pass
    (folder / "counter_12345.db").write_bytes(b"what an older version left")
    with process(folder, GATEWAY):
        found = scrape()
        assert found[TURNED_AWAY] == 1 and ASKED not in found
        assert slots(folder) == {"0"}


def test_a_fork_gets_files_of_its_own(folder: Path) -> None:
    fork = "if os.fork() == 0:\n  meters.count_turned_away(401)\n  os._exit(0)\nos.wait()\n"
    with process(folder, GATEWAY, fork):
        assert scrape()[TURNED_AWAY] == 2
        assert len(slots(folder)) == 2


def test_files_that_can_not_be_read_are_left_out_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with process(folder, GATEWAY), process(folder, GATEWAY):
        allowed = os.access
        monkeypatch.setattr(
            metrics.os, "access", lambda path, mode: not path.stem.endswith("_1") and allowed(path, mode)
        )
        assert scrape()[TURNED_AWAY] == 1
    assert "another user" in caplog.text


def test_more_than_the_most_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_slots, "SLOTS_MAX", 1)
    with process(folder, GATEWAY), pytest.raises(OSError, match="share the folder"):
        metric_slots.share(folder)


def test_processes_of_the_production_profile_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import django; django.setup()\n"
        "from prometheus_client import values; from apps.core import request_metrics\n"
        "request_metrics.REQUESTS.labels('GET', 'x', '2xx').inc(); print(values.ValueClass.__name__)"
    )
    done = start(tmp_path, code)
    assert done.stdout.strip() == "MmapedValue", done.stderr
    assert (tmp_path / "metrics" / "counter_0.db").exists()
    (tmp_path / "file").touch()
    refused = start(tmp_path, code, PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "file" / "metrics"))
    assert "PROMETHEUS_MULTIPROC_DIR" in refused.stderr.splitlines()[-1]
