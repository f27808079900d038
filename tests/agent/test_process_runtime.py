"""What the process runtime refuses, and what it cleans up."""

import asyncio
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from agent.config import Settings
from agent.contract.codes import Code
from agent.contract.messages import PipelineStage, PortMapping
from agent.contract.states import TaskType
from agent.engines.catalog import get_engine
from agent.identity import StateDir
from agent.runtime import proctable
from agent.runtime.base import PortBusy, StartRefused
from agent.runtime.leftovers import PidFile, clean_left_overs
from agent.runtime.process import ProcessRuntime
from agent.runtime.process_rules import kept_options, refusal
from tests.agent.fakes import make_settings, make_spec
from tests.fakes.tiny_model import make_tiny_model


@pytest.mark.req("AGENT-03")
@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"task_type": TaskType.TRAINING}, Code.START_FAILED, "task_type"),
        ({"task_type": TaskType.CONTAINER}, Code.START_FAILED, "task_type"),
        ({"command": ["sh"]}, Code.START_FAILED, "command"),
        ({"volumes": ["/data"]}, Code.START_FAILED, "volumes"),
        ({"engine": "mine"}, Code.START_FAILED, "engine"),
        ({"engine": "", "image": "me/thing:1"}, Code.START_FAILED, "engine"),
        ({"engine": "sglang"}, Code.ENGINE_UNAVAILABLE, None),
        ({"stage": PipelineStage(0, 2, 2, "a", 1, "a")}, Code.START_FAILED, "parallelism"),
        ({"ports": []}, Code.START_FAILED, "ports"),
        ({"task_id": "../../etc"}, Code.START_FAILED, "task_id"),
    ],
)
def test_process_runtime_refuses_by_name(changes: dict[str, object], code: Code, field: str | None) -> None:
    spec = make_spec(**changes)  # type: ignore[arg-type]
    why = refusal(spec, get_engine(spec.engine))
    assert why is not None
    assert (why.code, why.params.get("field")) == (code, field)
    assert refusal(make_spec(), get_engine("llamacpp")) is None
    assert refusal(make_spec(ports=[PortMapping(8080, 1024)]), get_engine("llamacpp")) is None


@pytest.mark.req("AGENT-04")
def test_process_runtime_keeps_only_what_the_builder_reads() -> None:
    engine = get_engine("llamacpp")
    assert engine is not None
    given_env = {"LLAMA_ARG_CTX_SIZE": "1", "LD_PRELOAD": "/x", "LLAMA_ARG_MODEL": "/etc", "PATH": "/x"}
    assert kept_options(given_env, engine) == (
        {"LLAMA_ARG_CTX_SIZE": "1"},
        ["LD_PRELOAD", "LLAMA_ARG_MODEL", "PATH"],
    )


def runtime(tmp_path: Path, **changes: object) -> ProcessRuntime:
    place = StateDir(tmp_path / "state")
    place.open()
    place.close()
    configured: Settings = make_settings(tmp_path / "state", **changes)
    return ProcessRuntime(configured, place)


@pytest.mark.req("AGENT-03")
async def test_engines_start_from_the_main_thread_only(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="main thread"):
        await asyncio.to_thread(runtime(tmp_path).start, make_spec())


@pytest.mark.req("AGENT-05")
def test_start_checks_the_path_before_anything(tmp_path: Path) -> None:
    with pytest.raises(StartRefused) as caught:
        runtime(tmp_path).start(make_spec(model_path="/etc/shadow"))
    assert caught.value.reason.code is Code.PATH_NOT_ALLOWED


@pytest.mark.req("AGENT-07")
def test_port_that_is_held_is_said(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        spec = make_spec(model_path=str(tmp_path / "m.gguf"), ports=[PortMapping(8080, port)])
        with pytest.raises(PortBusy):
            runtime(tmp_path, allowed_volume_prefixes=[str(tmp_path)]).start(spec)


@pytest.mark.slow
@pytest.mark.req("AGENT-03", "AGENT-09")
def test_an_engine_that_can_not_be_written_down_does_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: its attempt has failed, so nobody would ever end it."""
    here = runtime(tmp_path)
    begun: list[subprocess.Popen[bytes]] = []

    def spawn(*_: object) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return begun[0]

    monkeypatch.setattr(here, "_command", lambda *_: [])
    monkeypatch.setattr(here, "_spawn", spawn)
    monkeypatch.setattr(PidFile, "write", lambda *_: os.close(os.open("/dev/full/x", os.O_WRONLY)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ports = [PortMapping(8080, probe.getsockname()[1])]
    with pytest.raises(StartRefused) as refused:
        here.start(make_spec(ports=ports))
    assert "pid file" in str(refused.value.reason.params["why"])
    assert begun[0].poll() is not None


@pytest.mark.req("AGENT-03")
def test_context_beyond_the_machine_fails_by_name(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny")
    made = runtime(tmp_path, allowed_volume_prefixes=[str(tmp_path)], memory_limit_mb=1024)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ports = [PortMapping(8080, probe.getsockname()[1])]
    spec = make_spec(model_path=str(tmp_path / "tiny"), ports=ports, env={"LLAMA_ARG_CTX_SIZE": str(1 << 24)})
    instance = made.start(spec)
    try:
        deadline = time.monotonic() + 60
        while (ended := made.poll(instance)) is None:
            assert time.monotonic() < deadline, made.log_file("task-a", 1).read_text()
            time.sleep(0.05)
        assert ended.exit_code == 1
        assert "insufficient memory" in made.log_file("task-a", 1).read_text()
    finally:
        made.kill(instance)


@pytest.mark.req("AGENT-03")
def test_engines_on_cards_have_no_bound_of_addresses(tmp_path: Path) -> None:
    made = runtime(tmp_path, memory_limit_mb=1024)
    assert made._limit(make_spec(gpu_uuids=["GPU-1"])) == ""
    assert made._limit(make_spec()) == "ulimit -d 1048576 || exit 4; "
    assert runtime(tmp_path)._limit(make_spec()).startswith("ulimit -d ")


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", "sleep 600 & wait"], start_new_session=True)


@pytest.mark.req("AGENT-09")
def test_left_over_is_ended_with_its_children_and_a_stranger_is_not(tmp_path: Path) -> None:
    ours, stranger, orphaned = sleeper(), sleeper(), sleeper()
    try:
        PidFile.for_process(ours.pid).write(tmp_path / "task-a.1.json")
        written = PidFile.for_process(stranger.pid)
        # the pid was given to somebody else since; another boot; nonsense
        PidFile(written.pid, written.start_ticks - 1, written.boot_id).write(tmp_path / "task-b.1.json")
        PidFile(written.pid, written.start_ticks, "another-boot").write(tmp_path / "task-c.1.json")
        (tmp_path / "task-d.1.json").write_text("{")
        PidFile.for_process(orphaned.pid).write(tmp_path / "task-e.1.json")
        deadline = 200
        while len(proctable.session_members(orphaned.pid)) < 2 and deadline:
            deadline -= 1
            threading.Event().wait(0.01)
        os.kill(orphaned.pid, 9)
        orphaned.wait()
        assert clean_left_overs(tmp_path) == ["task-a.1", "task-e.1"]
        assert ours.wait(5) == -9
        assert proctable.session_members(ours.pid) == proctable.session_members(orphaned.pid) == []
        assert stranger.poll() is None
        assert list(tmp_path.glob("*.json")) == []
    finally:
        for child in (ours, stranger, orphaned):
            proctable.kill_session(child.pid)
            child.wait()
