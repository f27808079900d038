"""A whole embedded stack for tests: `manage.py up` with the tiny model, on free ports, in a folder of
its own, with short periods. What it printed is all that a test knows of it, as for any person.
"""

import os
import re
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import OpenAI

from apps.core.free_ports import free_ports
from apps.ops.rest import Api
from tests.fakes.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parent.parent
SHORT_PERIODS = {
    "SCHEDULING_PERIOD_S": "0.3",
    "RECOVERY_PERIOD_S": "0.5",
    "REBUILD_DELAY_S": "0.2",
    "RECONCILE_GRACE_S": "3",
    "STOP_GRACE_S": "2",
    "DRAIN_S": "2",
    "IDLE_PERIOD_S": "1",
    "IDLE_MINUTE_S": "1",
    "SLEEP_SETTLE_S": "0.5",
    "LOAD_FORGET_S": "45",  # a killed gateway holds up whoever would fall asleep for so long
    "HETEROFLOW_GATEWAY_LOAD_SAY_S": "0.3",
    "HETEROFLOW_AGENT_HEARTBEAT_S": "0.5",
    "HETEROFLOW_AGENT_LOADING_PROBE_S": "0.1",
}
LOAD_THRESHOLDS = ("LOAD_THRESHOLD_CPU", "LOAD_THRESHOLD_MEMORY", "LOAD_THRESHOLD_DISK")
METRICS_TOKEN = "a-token-of-the-tests-" + "m" * 32
READY_S = 240.0


def until(condition: Callable[[], Any], what: str | Callable[[], str], limit_s: float = 120.0) -> Any:
    """Ask until the answer is true, and return it. Fails with `what` after `limit_s`."""
    give_up_at = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= give_up_at:
            pytest.fail(f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


def free_port() -> int:
    return free_ports(1)[0]


def clean_environment(**more: str) -> dict[str, str]:
    """A person's environment: nothing of the suite's own settings. However busy the machine of the tests is,
    its nodes take work."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**kept, **dict.fromkeys(LOAD_THRESHOLDS, "100"), **more}


def processes_of(data_dir: Path) -> list[psutil.Process]:
    """Living processes that name this data directory in their environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), process.environ().get("DATA_DIR", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(str(data_dir) in word for word in words):
            found.append(process)
    return found


@dataclass
class Stack:
    """One `manage.py up`. Passwords and key are None where it did not print them."""

    data_dir: Path
    port: int
    model_file: Path
    environment: dict[str, str] = field(repr=False)
    process: subprocess.Popen[bytes] | None = None
    operator_password: str | None = field(default=None, repr=False)
    member_password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    model: str = "tiny"

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fingerprint(self) -> str:
        """Of its certificate; empty where it has none."""
        return ""

    @property
    def trust(self) -> ssl.SSLContext | None:
        """What a websocket's client must believe; None where the address is not a TLS one."""
        return None

    @property
    def log_file(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    def printed(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    # --- life ---

    def start(self, command: list[str] | None = None) -> None:
        """Start it and wait until it has printed that the demo can be called."""
        command = command or [sys.executable, "manage.py", "up", "--model", str(self.model_file)]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(self._is_settled, lambda: f"the stack is up; it printed:\n{self.printed()[-3000:]}", READY_S)
        text = self.printed()
        shown = r"user {}   password (\S+)   \(shown"
        self.operator_password = _first(shown.format("admin"), text) or self.operator_password
        self.member_password = _first(shown.format("demo"), text) or self.member_password
        self.api_key = _first(r"export OPENAI_API_KEY=(sk-\S+)", text) or self.api_key

    def _is_settled(self) -> bool:
        assert self.process is not None
        text = self.printed()
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{text[-3000:]}"
        assert "does not run yet" not in text and "could not be made" not in text, text[-3000:]
        return "export OPENAI_API_KEY=" in text and text.count("\n" + "-" * 78) >= 2

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=30)

    def end(self) -> None:
        """For the end of a test: gone, whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=20)
        for left in processes_of(self.data_dir):
            left.kill()

    # --- its processes ---

    def _child(self, *words: str) -> psutil.Process | None:
        for process in processes_of(self.data_dir):
            try:
                line = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if all(word in line for word in words) and "setpriv" not in line[0]:
                return process
        return None

    def server(self) -> psutil.Process | None:
        return self._child("manage.py", "serve")

    def agent(self) -> psutil.Process | None:
        return self._child("-m", "agent")

    def engines(self) -> list[psutil.Process]:
        """Processes under the agent that load a model file."""
        found = []
        for process in processes_of(self.data_dir):
            try:
                line = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if any(word.endswith(".gguf") for word in line) and "up" not in line:
                found.append(process)
        return found

    def kill(self, process: psutil.Process | None) -> None:
        """kill -9, and wait until it is gone."""
        assert process is not None
        process.send_signal(signal.SIGKILL)
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "it is gone")

    # --- its users ---

    def api(self, username: str = "demo") -> Api:
        """The REST API as a signed-in person."""
        password = {"demo": self.member_password, "admin": self.operator_password}[username]
        assert password is not None
        api = Api(self.base_url)
        api.sign_in(username, password)
        return api

    def openai(self, api_key: str | None = None) -> OpenAI:
        """The official SDK, without its own retries."""
        key = api_key or self.api_key
        return OpenAI(base_url=f"{self.base_url}/v1", api_key=key, max_retries=0, timeout=30)

    def gateways(self) -> list[OpenAI]:
        """The SDK at each of its gateways, past whatever stands before them."""
        return [self.openai()]

    def ask(self, **more: Any) -> str:
        """One short answer of the demo model."""
        answer = self.openai().chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": "hi"}], max_tokens=16, **more
        )
        return answer.choices[0].message.content or ""

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query reads from its database; a value's place is `?`."""
        database = self.data_dir / "heteroflow.sqlite3"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)) as connection:
            return connection.execute(sql, values).fetchall()

    def demo_group(self) -> dict[str, Any]:
        """The demo service as the API describes it."""
        found = next(row for row in self.api().rows("/api/v1/task-groups") if row["name"] == "demo")
        return dict(self.api().call("GET", f"/api/v1/task-groups/{found['id']}"))


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None


def new_stack(folder: Path, *, layers: int = 2, **environment: str) -> Stack:
    """A stack that is not started yet. More `layers` make the model slower."""
    folder.mkdir(parents=True, exist_ok=True)
    model = make_tiny_model(folder / "made", layers=layers).rename(folder / "tiny.gguf")
    port, data_dir = free_port(), folder / "data"
    place = {"PORT": str(port), "DATA_DIR": str(data_dir)}
    variables = {**SHORT_PERIODS, "METRICS_TOKEN": METRICS_TOKEN, **place, **environment}
    return Stack(data_dir, port, model, clean_environment(**variables))


@contextmanager
def running_stack(folder: Path, *, layers: int = 2, **environment: str) -> Iterator[Stack]:
    """A started stack; gone afterwards."""
    stack = new_stack(folder, layers=layers, **environment)
    try:
        stack.start()
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests that only use it. They share its tenant, so each makes its own things.

    The embedded profile's; in tests/production it is the production profile's.
    """
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack
        assert_clean_log(stack)


def assert_clean_log(stack: Stack) -> None:
    """Whatever the tests did, no process of it has logged a traceback or a secret (OPS-08)."""
    logged = [line for line in stack.printed().splitlines() if line.startswith("[")]
    secrets = [stack.api_key, stack.member_password, stack.operator_password]
    assert logged
    wrong = [line for line in logged if "Traceback" in line]
    wrong += [line for line in logged if any(secret and secret in line for secret in secrets)]
    around = stack.printed().partition(wrong[0])[2][:5000] if wrong else ""
    assert not wrong, f"{wrong}\n{around}"
