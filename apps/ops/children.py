"""Children of a supervisor: started so that they can not outlive us, watched, restarted, stopped.

Each gets a parent-death signal (setpriv) and checks its parent once more, since the parent may have
died in between. Linux ties that signal to the thread that forked, so start() belongs to the main
thread. Never decides what runs; that is the supervisor's.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# $0 is the pid of the parent that must still be ours; "$@" is the program.
CHECK_PARENT = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'
STABLE_S = 30.0  # a run this long starts the back-off anew
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 15.0


@dataclass(frozen=True)
class Program:
    """What a child runs: our own Python, or another executable. `stop_s` is how long it may take to end
    after `stop_signal`. `as_user`: the account it runs as, where we are root; None = ours."""

    name: str
    arguments: list[str]
    environment: dict[str, str] = field(repr=False)
    stop_s: float
    executable: str = sys.executable
    stop_signal: int = signal.SIGTERM
    as_user: str | None = None


class Child:
    """One child process and its successors. Times are the caller's monotonic seconds."""

    def __init__(self, program: Program, parent_pid: int, say: Callable[[str], None]) -> None:
        self.program = program
        self.parent_pid = parent_pid
        self.say = say
        self.prefix = f"[{program.name}]"
        self.process: subprocess.Popen[str] | None = None
        self.started_at = 0.0
        self.delay_s = FIRST_DELAY_S
        self.due_at: float | None = None

    def start(self, now: float) -> None:
        """Start a process. From the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("children are started from the main thread only")
        user = self.program.as_user
        account = [f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        guard = ["setpriv", *account, "--pdeathsig", "KILL", "sh", "-c", CHECK_PARENT, str(self.parent_pid)]
        self.process = subprocess.Popen(  # noqa: S603
            [*guard, self.program.executable, *self.program.arguments],
            env=self.program.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C reaches the whole foreground group; the children are stopped in order instead.
            start_new_session=True,
        )
        self.started_at, self.due_at = now, None
        threading.Thread(target=self._pump, args=(self.process,), daemon=True).start()

    def watch(self, now: float) -> None:
        """Notice an end, and start again when the back-off is over. From the main thread only."""
        if self.process is not None and (code := self.process.poll()) is not None:
            end_group(self.process.pid)
            if now - self.started_at >= STABLE_S:
                self.delay_s = FIRST_DELAY_S
            self.process, self.due_at = None, now + self.delay_s
            self.say(f"{self.prefix} ended with code {code}; starts again in {self.delay_s:g} s")
            self.delay_s = min(self.delay_s * 2, LONGEST_DELAY_S)
        elif self.due_at is not None and now >= self.due_at:
            self.start(now)

    def request_stop(self) -> None:
        """Ask it to end."""
        self.due_at = None
        self.send(self.program.stop_signal)

    def runs(self) -> bool:
        """Whether its process is there now."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal, where it runs."""
        if self.process is not None and self.runs():
            self.process.send_signal(number)

    def wait_or_kill(self, hurry: threading.Event) -> None:
        """Wait for its end, at most `stop_s`; then, or when in a hurry, end it by force."""
        if self.process is None:
            return
        give_up_at = time.monotonic() + self.program.stop_s
        while self.process.poll() is None and time.monotonic() < give_up_at and not hurry.is_set():
            try:
                self.process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        if self.process.poll() is None:
            self.say(f"{self.prefix} did not end in time; ended by force")
            self.process.kill()
            self.process.wait()
        end_group(self.process.pid)

    def _pump(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                # A JSON line is one for what collects it, and says itself whose it is.
                self.say(line.rstrip() if line.startswith("{") else f"{self.prefix} {line.rstrip()}")


def end_group(leader_pid: int) -> None:
    """End what a child that has ended left behind: workers of a killed master hold its port."""
    try:
        os.killpg(leader_pid, signal.SIGKILL)
    except ProcessLookupError:  # it left nobody
        return
