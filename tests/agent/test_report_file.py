"""Reports outlive the agent that made them (AGENT-14): killed at any byte, on a disk that takes nothing, and
taken up by the next run in their order and under its own numbers."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import ReportReply, ReportRequest, RunningReport, TaskReport
from agent.contract.states import Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable
from agent.link.logroom import LAST_BYTES, LogRoom
from agent.link.reportfile import LARGEST_WASTE_BYTES, ReportFile
from agent.link.reports import ReportQueue

pytestmark = pytest.mark.req("AGENT-14")
ROOT = Path(__file__).parents[2]
Send = Callable[[ReportRequest], Awaitable[ReportReply]]


class Server:
    """Takes reports of the run that it has heard of, once each; `limit`: and then answers no more."""

    def __init__(self, limit: int | None = None) -> None:
        self.taken: list[TaskReport] = []
        self.incarnations: list[str] = []
        self.limit = limit

    async def __call__(self, request: ReportRequest) -> ReportReply:
        room = len(request.reports) if self.limit is None else self.limit - len(self.taken)
        if room <= 0:
            raise ServerUnreachable("away")
        some = request.reports[:room]
        self.taken += some
        self.incarnations.append(request.incarnation)
        return ReportReply(up_to_sequence=some[-1].sequence)


def queue_of(
    file: Path, server: Callable[..., object], run: str = "run-1", *, held: bool = False
) -> ReportQueue:
    return ReportQueue(
        run,
        server,  # type: ignore[arg-type]
        file=ReportFile(file),
        held=held,
        first_pause_s=0.001,
        max_pause_s=0.01,
    )


def add(queue: ReportQueue, first: int, count: int, observed: Observed = Observed.EXITED) -> None:
    for number in range(first, first + count):
        queue.add(
            f"task-{number}",
            1,
            Phase.LEAVING,
            observed,
            why=reason(Code.EXITED, exit_code=number),
            exit_code=number,
            last_log_lines=[f"last line of {number}"],
        )


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def test_what_was_not_acknowledged_is_sent_by_the_next_run_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "reports.jsonl"
    first = Server(limit=2)
    queue = queue_of(file, first)
    sending = asyncio.ensure_future(queue.run())
    add(queue, 1, 5)
    await until(lambda: len(queue) == 3)
    sending.cancel()  # the agent is killed
    happened = [report.happened_at for report in queue._waiting]

    second = Server()
    queue = queue_of(file, second, "run-2", held=True)
    assert len(queue) == 3 and queue.waiting("task-3", 1)
    sending = asyncio.ensure_future(queue.run())
    add(queue, 6, 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert second.taken == []  # the server has not heard of this run
    queue.release()
    assert await queue.drained(5)
    sending.cancel()
    assert [(r.sequence, r.task_id, r.exit_code) for r in second.taken] == [
        (1, "task-3", 3),
        (2, "task-4", 4),
        (3, "task-5", 5),
        (4, "task-6", 6),
    ]
    assert [r.happened_at for r in second.taken[:3]] == happened
    assert second.taken[0].last_log_lines == ["last line of 3"]
    assert set(second.incarnations) == {"run-2"}
    assert len(queue_of(file, second, "run-3")) == 0


def test_a_file_cut_at_any_byte_keeps_every_whole_report(tmp_path: Path) -> None:
    file = tmp_path / "reports.jsonl"
    add(queue_of(file, Server()), 1, 3)
    whole = file.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        kept = [report.exit_code for report in ReportFile(file).load()]
        assert kept[: sum(end <= cut for end in ends)] == [1, 2, 3][: sum(end <= cut for end in ends)]
        again = queue_of(file, Server(), "run-2")
        add(again, 9, 1)
        assert [report.exit_code for report in ReportFile(file).load()] == [*kept, 9]


def test_many_reports_are_read_back_at_a_cost_that_rises_with_their_number(tmp_path: Path) -> None:
    report = TaskReport(1, "task-a", 1, Phase.LOADING, Observed.STARTING)
    file = tmp_path / "reports.jsonl"
    ReportFile(file).append(report)
    file.write_bytes(file.read_bytes() * 40_000)
    began = time.process_time()  # of this process alone, however busy the machine is
    assert len(ReportFile(file).load()) == 40_000
    assert time.process_time() - began < 8


@pytest.mark.slow
@pytest.mark.parametrize("after", range(4))
def test_an_agent_killed_between_two_reports_has_those_before_on_disk(tmp_path: Path, after: int) -> None:
    code = f"""
import os, signal
from pathlib import Path
from tests.agent.test_report_file import Server, add, queue_of
queue = queue_of(Path({str(tmp_path / "reports.jsonl")!r}), Server())
for number in range(4):
    if number == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    add(queue, number, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    left = ReportFile(tmp_path / "reports.jsonl").load()
    assert [report.exit_code for report in left] == list(range(after))


async def test_a_full_disk_stops_no_report_and_all_are_kept_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "reports.jsonl"
    server = Server(limit=0)
    queue = queue_of(file, server)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if data.startswith(b'{"report"'):
            real(fd, data[:5])
            return 5
        return real(fd, data)

    monkeypatch.setattr("agent.link.reportfile.os.write", full)
    add(queue, 1, 1)
    assert os.strerror(errno.ENOSPC) in caplog.text
    assert file.read_bytes() == b""
    monkeypatch.undo()
    add(queue, 2, 1)
    assert [report.exit_code for report in ReportFile(file).load()] == [1, 2]
    server.limit = None
    sending = asyncio.ensure_future(queue.run())
    assert await queue.drained(5)
    sending.cancel()
    assert [report.exit_code for report in server.taken] == [1, 2]


async def test_a_report_that_the_server_refuses_for_good_is_not_taken_up_again(tmp_path: Path) -> None:
    file = tmp_path / "reports.jsonl"

    async def refuse(request: ReportRequest) -> ReportReply:
        raise ServerRefused(403, Code.NOT_THIS_NODES, "deleted meanwhile")

    queue = queue_of(file, refuse)
    sending = asyncio.ensure_future(queue.run())
    add(queue, 1, 2)
    assert await queue.drained(5)
    sending.cancel()
    assert ReportFile(file).load() == []


def test_the_file_shrinks_while_some_always_wait(tmp_path: Path) -> None:
    file = tmp_path / "reports.jsonl"
    kept = ReportFile(file)
    one = TaskReport(1, "task-a", 1, Phase.LEAVING, Observed.EXITED, last_log_lines=["x" * 50_000])
    kept.append(one)
    for number in range(2, 200):
        kept.append(
            TaskReport(number, "task-a", 1, Phase.LEAVING, Observed.EXITED, last_log_lines=["y" * 50_000])
        )
        kept.acknowledge(number - 1, [TaskReport(number, "task-a", 1, Phase.NONE, Observed.GONE)], size=1)
        assert file.stat().st_size < LARGEST_WASTE_BYTES * 2 + 200_000
    assert [report.sequence for report in kept.load()] == [199]


def test_ends_of_an_earlier_run_are_named_until_they_were_taken(tmp_path: Path) -> None:
    """Where one is missing, the server concludes that its agent took it along."""
    file = tmp_path / "reports.jsonl"
    before = queue_of(file, Server())
    add(before, 1, 2)
    add(before, 3, 1, Observed.READY)  # what became of it nobody knows: the runtime names it, or it is gone
    add(before, 4, 1, Observed.UNHEALTHY)
    queue = queue_of(file, Server(), "run-2")
    add(queue, 5, 1)  # of this run: the supervisor names it
    here = RunningReport("task-2", 1, Observed.EXITED, [20001])
    assert queue.with_earlier([here]) == [
        here,
        RunningReport("task-1", 1, Observed.EXITED),
        RunningReport("task-4", 1, Observed.UNHEALTHY),
    ]
    queue._waiting.clear()
    assert queue.with_earlier([]) == []


def test_reports_take_their_room_from_the_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / "task-a.1.log"
    log.write_bytes(b"x" * 99 + b"\n" + b"y" * (8 * LAST_BYTES))
    waiting = tmp_path / "reports.jsonl"
    room = LogRoom(logs, each=1 << 30, together=9 * LAST_BYTES, beside=waiting)
    assert room.tidy({}) == 0
    waiting.write_bytes(b"z" * 4 * LAST_BYTES)
    assert room.tidy({}) >= 3 * LAST_BYTES
    assert room.note(log).lost_lines == 1
    assert waiting.stat().st_size == 4 * LAST_BYTES
