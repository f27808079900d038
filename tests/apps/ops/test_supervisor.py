"""Children: restarted with back-off, ended in order, gone with their parent (real processes)."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.ops.children import FIRST_DELAY_S, Child, Program
from apps.ops.supervisor import Stage, Supervisor
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.slow


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def child(code: str, said: list[str], stop_s: float = 5.0) -> Child:
    program = Program("part", ["-c", code], {"PATH": os.environ["PATH"]}, stop_s)
    return Child(program, os.getpid(), said.append)


def test_output_is_prefixed() -> None:
    said: list[str] = []
    one = child("print('hello')", said)
    one.start(0.0)
    until(lambda: "[part] hello" in said)


def test_an_ended_child_starts_again_after_its_delay_which_grows() -> None:
    said: list[str] = []
    one = child("raise SystemExit(3)", said)
    one.start(0.0)
    assert one.process is not None
    one.process.wait(timeout=20)
    one.watch(1.0)
    assert one.process is None
    assert one.due_at == 1.0 + FIRST_DELAY_S
    assert "ended with code 3" in said[-1]
    one.watch(1.0 + FIRST_DELAY_S / 2)
    assert one.process is None
    one.watch(1.0 + FIRST_DELAY_S)
    assert one.process is not None
    one.process.wait(timeout=20)
    one.watch(2.0)
    assert one.due_at == 2.0 + FIRST_DELAY_S * 2


def test_one_that_ignores_the_stop_is_ended_by_force() -> None:
    said: list[str] = []
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('up', flush=True); time.sleep(60)"
    one = child(code, said, stop_s=0.3)
    one.start(0.0)
    until(lambda: "[part] up" in said)
    one.request_stop()
    one.wait_or_kill(hurry=threading.Event())
    assert one.process is not None
    assert one.process.poll() == -signal.SIGKILL


@pytest.mark.req("OPS-01")
def test_killed_parent_takes_its_children_along() -> None:
    parent_code = textwrap.dedent(
        """
        import os, sys, time
        from apps.ops.children import Child, Program
        program = Program("part", ["-c", "import time; time.sleep(600)"], dict(os.environ), 5.0)
        one = Child(program, os.getpid(), print)
        one.start(0.0)
        print(one.process.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait(timeout=20)
    parent.stdout.close()
    until(lambda: not is_alive(pid))


def test_what_a_killed_master_leaves_ends_with_it() -> None:
    said: list[str] = []
    code = "import subprocess, sys, time; sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    code += "one = subprocess.Popen(sleep); print(one.pid, flush=True); time.sleep(600)"
    one = child(code, said)
    one.start(0.0)
    until(lambda: bool(said))
    worker = int(said[0].split()[-1])
    assert one.process is not None
    one.process.kill()
    one.process.wait(timeout=20)
    assert is_alive(worker)
    one.watch(1.0)
    until(lambda: not is_alive(worker))


def test_stages_start_in_order_and_end_in_the_opposite_one() -> None:
    said: list[str] = []
    code = "import signal, sys, time; end = lambda *a: sys.exit(print('down', flush=True))\n"
    code += "signal.signal(signal.SIGTERM, end); "
    code += "print('up', flush=True); time.sleep(600)"
    parts = {name: Program(name, ["-c", code], {"PATH": os.environ["PATH"]}, 5.0) for name in ("one", "two")}
    one, two = (Child(program, os.getpid(), said.append) for program in parts.values())
    supervisor = Supervisor(
        [
            Stage([one], ready=lambda: "[one] up" in said, drain=lambda hurry: said.append("drain one")),
            Stage([two], prepare=lambda: said.append("prepare two")),
        ]
    )
    threading.Thread(target=lambda: (until(lambda: "[two] up" in said), supervisor.stop.set())).start()
    supervisor.run()
    until(lambda: len(said) == 6)
    assert said == ["[one] up", "prepare two", "[two] up", "drain one", "[two] down", "[one] down"]
