"""Runs catalog engines as local processes: for the embedded profile only (AGENT-03).

Owns the processes, their log files and their pid files. An engine dies with its agent: the kernel's
parent-death signal ends it, whatever ends the agent. That signal fires when the *thread* that
forked ends, so engines are started from the main thread only. Never adopts, never restarts.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import psutil

from agent.config import Settings
from agent.contract.codes import Code, reason
from agent.contract.messages import CardReport, EngineReport, TaskSpec
from agent.contract.states import RuntimeKind
from agent.engines.base import Engine, EngineCall, EngineOptionError
from agent.engines.catalog import compute_capability_at_least, get_engine
from agent.engines.environment import agent_env, user_env
from agent.identity import StateDir
from agent.models.locate import check_links, gguf_file
from agent.models.paths import PathRefused, check_model_path
from agent.runtime import process_rules, proctable
from agent.runtime.base import Adopted, Exit, Instance, Kept, StartRefused
from agent.runtime.bound_ports import require_free
from agent.runtime.leftovers import PidFile, clean_left_overs

log = logging.getLogger("agent.runtime")
LAUNCHER = Path(__file__).with_name("llamacpp_server.py")
# $1 is the agent: an engine forked just before its agent died must not start.
CHECK_PARENT = '[ "$PPID" = "$1" ] || exit 3; shift; exec "$@"'
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessRuntime:
    """The process runtime; fills `agent.runtime.base.Runtime`."""

    kind = RuntimeKind.PROCESS
    outlives_agent = False

    def __init__(self, settings: Settings, state_dir: StateDir) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def probe_engines(self, cards: list[CardReport] | None) -> list[EngineReport]:
        found = []
        if (version := _installed("xllamacpp")) is not None:
            found.append(EngineReport(name="llamacpp", version=version))
        capable = any(compute_capability_at_least(c.compute_capability, "7.5") for c in cards or [])
        if (version := _installed("vllm")) is not None and self._vllm_program() is not None and capable:
            found.append(EngineReport(name="vllm", version=version))
        return found

    def engine_images(self) -> list[str] | None:
        return None

    def answers(self) -> bool:
        return True

    def adoptable(self) -> list[Adopted]:
        """None: engines die with their agent (AGENT-03)."""
        return []

    def abandon(self, task_id: str, attempt: int) -> bool:
        """A start is over when `start` returns, so nothing is ever under way."""
        return True

    def close(self, wait_s: float) -> None:
        """Nothing is under way; the engines were ended by the supervisor."""

    def clean_left_overs(self) -> list[str]:
        return clean_left_overs(self._state_dir.processes)

    def log_file(self, task_id: str, attempt: int) -> Path:
        return self._state_dir.logs / f"{task_id}.{attempt}.log"

    def start(self, spec: TaskSpec) -> Instance:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("engines are started from the main thread only")
        engine = get_engine(spec.engine)
        why = process_rules.refusal(spec, engine)
        if why is not None or engine is None:
            raise StartRefused(why or process_rules.unavailable(spec.engine))
        setpriv = shutil.which("setpriv", path=SEARCH_PATH)
        if setpriv is None:
            raise StartRefused(reason(Code.ENGINE_UNAVAILABLE, engine=spec.engine, why="setpriv is missing"))
        port = spec.ports[0].host_port
        command = self._command(spec, engine, port)
        require_free(self._settings.engine_host, port)
        name = f"{spec.task_id}.{spec.attempt}"
        child = self._spawn([setpriv, "--pdeathsig", "KILL", "--", *command], spec, engine)
        try:
            PidFile.for_process(child.pid).write(self._state_dir.processes / f"{name}.json")
        except OSError as error:  # nobody would know of it: not this run, since it has failed, nor the next
            proctable.kill_session(child.pid)
            child.wait()
            raise StartRefused(reason(Code.START_FAILED, why=f"its pid file: {error.strerror}")) from error
        self._processes[name] = child
        log.info("started %s with %s as process %d on port %d", name, engine.name, child.pid, port)
        return Instance(task_id=spec.task_id, attempt=spec.attempt, name=name, host_ports=[port])

    def poll(self, instance: Instance) -> Exit | None:
        child = self._processes.get(instance.name)
        if child is None:
            return Exit(exit_code=None)
        code = child.poll()
        if code is None:
            return None
        # An engine's own children may outlive it and keep card memory: it has ended when all have.
        if proctable.kill_session(child.pid):
            return None
        return Exit(exit_code=128 - code if code < 0 else code)

    def terminate(self, instance: Instance) -> None:
        child = self._processes.get(instance.name)
        if child is not None and child.poll() is None:
            _signal_group(child.pid, signal.SIGTERM)

    def kill(self, instance: Instance) -> None:
        child = self._processes.get(instance.name)
        if child is not None:
            proctable.kill_session(child.pid)

    def keep(self, instance: Instance) -> None:
        """Nothing of a process is left to keep but its place: `restart` starts it from its spec."""
        self.forget(instance)

    def kept(self, instance: Instance) -> Kept:
        return Kept.LIES

    def restart(self, instance: Instance, spec: TaskSpec) -> Instance:
        return self.start(spec)

    def forget(self, instance: Instance, *, again: bool = False) -> None:
        self._processes.pop(instance.name, None)
        (self._state_dir.processes / f"{instance.name}.json").unlink(missing_ok=True)

    def _command(self, spec: TaskSpec, engine: Engine, port: int) -> list[str]:
        """The whole line after setpriv. Raises StartRefused."""
        try:
            path = check_model_path(spec.model_path, self._settings.path_rules)
            check_links(path, spec.model_path, self._settings.path_rules)
            if engine.name == "llamacpp":
                path = gguf_file(path, spec.model_path)
        except PathRefused as error:
            raise StartRefused(error.reason) from error
        options, dropped = process_rules.kept_options(user_env(spec.env)[0], engine)
        if dropped:
            log.warning(
                "%s: entries not passed on by the process runtime: %s", spec.task_id, ", ".join(dropped)
            )
        call = EngineCall(
            model_path=str(path),
            served_model_name=spec.served_model_name,
            host=self._settings.engine_host,
            port=port,
            gpu_count=len(spec.gpu_uuids),
            gpu_vendor=spec.gpu_vendor,
            tensor_parallel=spec.tensor_parallel,
            memory_percent=spec.memory_percent,
            threads=self._settings.engine_threads,
            options=options,
            sleep_enabled=spec.sleep_enabled,
        )
        try:
            arguments = engine.process_arguments(call)
        except EngineOptionError as error:
            raise StartRefused(
                reason(Code.START_FAILED, why=f"{error.name} = {error.value}: {error.rule}")
            ) from error
        script = self._limit(spec) + CHECK_PARENT
        check = ["/bin/sh", "-c", script, "engine", str(os.getpid())]
        return [*check, *self._program(engine), *arguments]

    def _limit(self, spec: TaskSpec) -> str:
        """Shell words that bound what an engine may allocate (mapped model files do not count), so that a
        context beyond the machine fails by name instead of taking its neighbours along. None with cards:
        their drivers set aside more addresses than there is memory."""
        if spec.gpu_uuids:
            return ""
        limit = self._settings.memory_limit_mb << 20 or psutil.virtual_memory().total * 9 // 10
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        return f"ulimit -d {limit // 1024} || exit 4; "

    def _program(self, engine: Engine) -> list[str]:
        if engine.name == "llamacpp" and _installed("xllamacpp") is not None:
            return [sys.executable, "-I", str(LAUNCHER)]
        program = self._vllm_program() if engine.name == "vllm" else None
        if program is None:
            raise StartRefused(process_rules.unavailable(engine.name))
        return [program]

    @staticmethod
    def _vllm_program() -> str | None:
        return shutil.which("vllm", path=f"{Path(sys.executable).parent}:{SEARCH_PATH}")

    def _spawn(self, argv: list[str], spec: TaskSpec, engine: Engine) -> subprocess.Popen[bytes]:
        """Raises StartRefused where the system refuses the start."""
        env = {
            "PATH": SEARCH_PATH,
            "HOME": str(self._state_dir.path),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "HETEROFLOW_AGENT_PID": str(os.getpid()),
            **agent_env(
                engine,
                task_id=spec.task_id,
                attempt=spec.attempt,
                gpu_vendor=spec.gpu_vendor,
                gpu_uuids=spec.gpu_uuids,
                engine_key=spec.engine_key,
                sleep_enabled=spec.sleep_enabled,
            ),
        }
        try:
            out = os.open(
                self.log_file(spec.task_id, spec.attempt),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
        except OSError as error:
            raise StartRefused(reason(Code.START_FAILED, why=f"its log file: {error.strerror}")) from error
        try:
            return subprocess.Popen(  # noqa: S603 - the line is ours, word by word
                argv,
                env=env,
                cwd=self._state_dir.path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            raise StartRefused(
                reason(Code.START_FAILED, why=f"{Path(argv[0]).name}: {error.strerror}")
            ) from error
        finally:
            os.close(out)


def _installed(package: str) -> str | None:
    """Version of an installed package, read without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        log.debug("group %d had ended already", group)
