"""A whole production stack for tests: `manage.py run-production` with the tiny model, on free ports, with
short periods. PostgreSQL, Redis and nginx are the machine's own programs, in a folder of the stack.
"""

import os
import shlex
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from openai import DefaultHttpxClient, OpenAI

from apps.core import ticks
from apps.ops.production import front
from tests.fakes.tiny_model import make_tiny_model
from tests.stack import SHORT_PERIODS, Stack, clean_environment, free_port, processes_of, until

# What names each part in its command line.
PARTS = {
    "worker": "worker-1@%h",
    "scheduler": "scheduler-1@%h",
    "beat": "beat",
    "wsgi": "granian",
    "asgi": "uvicorn",
    "agent": "agent",
    "redis": "redis.conf",
    "postgres": "postgres",
    "nginx": "nginx.conf",
}


# How often each loop runs in such a stack, by the setting of its period; `PERIODS` by the loop's name.
LOOP_PERIODS = {loop.every: SHORT_PERIODS.get(loop.every, "1") for loop in ticks.REGISTRY.values()}
PERIODS = {name: float(LOOP_PERIODS[loop.every]) for name, loop in ticks.REGISTRY.items()}


class ProductionStack(Stack):
    """One `manage.py run-production`."""

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.data_dir / "tls" / "server.crt"

    def start(self, command: list[str] | None = None) -> None:
        super().start(
            command or [sys.executable, "manage.py", "run-production", "--model", str(self.model_file)]
        )

    @property
    def fingerprint(self) -> str:
        return front.fingerprint(self.certificate)

    @property
    def trust(self) -> ssl.SSLContext:
        """Believes the stack's own certificate and nothing else."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def openai(self, api_key: str | None = None) -> OpenAI:
        """The official SDK, which believes as little."""
        return OpenAI(
            base_url=f"{self.base_url}/v1",
            api_key=api_key or self.api_key,
            max_retries=0,
            timeout=30,
            http_client=DefaultHttpxClient(verify=self.trust),
        )

    def gateways(self) -> list[OpenAI]:
        listening = [process.environ()["GATEWAY_LISTEN"] for process in self.processes("asgi")]
        return [
            OpenAI(base_url=f"http://{place}/v1", api_key=self.api_key, max_retries=0, timeout=30)
            for place in listening
        ]

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.kept("DATABASE_URL"), connect_timeout=5) as link:
            return link.execute(sql.replace("?", "%s"), values).fetchall()

    def engines(self) -> list[psutil.Process]:
        started = self.process.pid if self.process is not None else 0
        return [process for process in super().engines() if process.pid != started]

    def kept(self, name: str) -> str:
        """A value of the environment that the start keeps for other commands."""
        for line in (self.data_dir / "production.env").read_text().splitlines():
            if line.startswith(f"{name}="):
                return "".join(shlex.split(line.partition("=")[2]))
        raise AssertionError(f"{name} is not kept")

    def part(self, name: str) -> psutil.Process:
        """The first process of a part: granian's and PostgreSQL's masters, no worker of them."""
        found = self.processes(name)
        assert found, f"no process of {name}"
        return found[0]

    def processes(self, name: str) -> list[psutil.Process]:
        """The supervisor's children of a part, the oldest first; none while it is away."""
        found = []
        for process in processes_of(self.data_dir):
            try:
                line, parent = process.cmdline(), process.ppid()
            except psutil.NoSuchProcess:
                continue
            ours = self.process is not None and parent == self.process.pid
            if ours and any(Path(word).name == PARTS[name] for word in line):
                found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def last_run(self, tick: str) -> float:
        """When the run of a loop began that last ended well, in epoch seconds; 0 before the first."""
        query = (
            "SELECT extract(epoch FROM started_at)::float8 FROM core_tickrun"
            " WHERE name = ? AND outcome = 'done'"
        )
        found = self.rows(query, tick)
        return float(found[0][0]) if found else 0.0


@contextmanager
def running_production(
    *, layers: int = 2, true_durations: bool = False, **environment: str
) -> Iterator[ProductionStack]:
    """A started stack; gone afterwards. Inside, this process believes its certificate. More `layers` make
    the model slower; with `true_durations` its periods are those of an installation."""
    folder = Path(tempfile.mkdtemp(prefix="heteroflow-production-"))
    folder.chmod(0o711)  # PostgreSQL's account passes through
    model = make_tiny_model(folder / "made", layers=layers).rename(folder / "tiny.gguf")
    port, data_dir = free_port(), folder / "data"
    place = {"PORT": str(port), "DATA_DIR": str(data_dir)}
    periods = {} if true_durations else {**SHORT_PERIODS, **LOOP_PERIODS}
    variables = {**periods, **place, **environment}
    stack = ProductionStack(data_dir, port, model, clean_environment(**variables))
    before = os.environ.get("SSL_CERT_FILE")
    try:
        stack.start()
        os.environ["SSL_CERT_FILE"] = str(stack.certificate)
        yield stack
    finally:
        if before is None:
            os.environ.pop("SSL_CERT_FILE", None)
        else:
            os.environ["SSL_CERT_FILE"] = before
        stack.end()
        shutil.rmtree(folder, ignore_errors=True)


def pause(process: psutil.Process) -> None:
    """SIGSTOP: it lives, holds its connections and answers nothing."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped", limit_s=10)
