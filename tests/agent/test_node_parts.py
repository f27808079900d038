"""Settings, identity, cards, host, masking, rules of the process runtime."""

import asyncio
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import ConfigError, Settings, load_settings
from agent.contract.codes import Code
from agent.contract.messages import CardReport, PortMapping
from agent.contract.states import TaskType
from agent.engines.catalog import get_engine
from agent.gpu.cards import CardsUnknown, read_cards
from agent.gpu.host import listening_ports, read_host
from agent.gpu.readings import NodeReadings
from agent.identity import Identity, StateDir, machine_id
from agent.masking import MaskingFilter, mask, printable, secret_values
from agent.runtime import proctable
from agent.runtime.base import PortBusy, StartRefused
from agent.runtime.leftovers import PidFile, clean_left_overs
from agent.runtime.process import ProcessRuntime
from agent.runtime.process_rules import kept_options, refusal
from tests.agent.fakes import FakeRuntime, make_settings, make_spec

NEEDED = {"HETEROFLOW_AGENT_SERVER_URL": "https://hf.example", "HETEROFLOW_AGENT_STATE_DIR": "/var/lib/x"}


# --- settings -------------------------------------------------------------------------------------


def test_environment_lies_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'server_url = "https://a"\nstate_dir = "/s"\nheartbeat_s = 9\nport_range = [3000, 3001]\n'
    )
    plain = load_settings(file, {})
    assert (plain.server_url, plain.heartbeat_s, plain.port_range) == ("https://a", 9, (3000, 3001))
    over = load_settings(
        file,
        {
            "HETEROFLOW_AGENT_HEARTBEAT_S": "2.5",
            "HETEROFLOW_AGENT_PORT_RANGE": "4000-4009",
            "HETEROFLOW_AGENT_ALLOWED_VOLUME_PREFIXES": "/a:/b",
            "HETEROFLOW_AGENT_ENGINE_THREADS": "2",
        },
    )
    assert (over.heartbeat_s, over.port_range, over.engine_threads) == (2.5, (4000, 4009), 2)
    assert over.allowed_volume_prefixes == ["/a", "/b"]


@pytest.mark.req("AGENT-01")
@pytest.mark.parametrize(
    "url", ["https://hf.example", "http://127.0.0.1:3333", "http://[::1]:1", "http://localhost"]
)
def test_safe_addresses_are_accepted(url: str) -> None:
    assert load_settings(None, {**NEEDED, "HETEROFLOW_AGENT_SERVER_URL": url}).server_url == url


@pytest.mark.req("AGENT-01")
@pytest.mark.parametrize(
    "url",
    [
        "http://hf.example",
        "http://10.0.0.1",
        "http://127.0.0.1.evil.example",
        "ftp://x",
        "hf",
        "https://u:p@x",
    ],
)
def test_address_in_the_clear_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(url))):
        load_settings(None, {**NEEDED, "HETEROFLOW_AGENT_SERVER_URL": url})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RUNTIME", "docker", "arrives with the Docker runtime"),
        ("RUNTIME", "podman", "not usable"),
        ("PORT_RANGE", "5-4", "port_range"),
        ("PORT_RANGE", "many", "not usable"),
        ("HEARTBEAT_S", "0", "heartbeat_s"),
        ("HEARTBEAT_S", "soon", "not usable"),
        ("ALLOWED_VOLUME_PREFIXES", "models", "absolute"),
        ("STATE_DIR", "state", "absolute"),
        ("STATE_DIR", "", "not set"),
        ("ENGINE_THREADS", "0", "engine_threads"),
        ("SERVER_SHA256", "ab", "64"),
    ],
)
def test_wrong_setting_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(None, {**NEEDED, f"HETEROFLOW_AGENT_{name}": value})


def test_file_that_is_missing_broken_or_misspelt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "no.toml", NEEDED)
    (tmp_path / "a.toml").write_text("= 1")
    with pytest.raises(ConfigError, match="not TOML"):
        load_settings(tmp_path / "a.toml", NEEDED)
    (tmp_path / "b.toml").write_text("heart_beat = 1")
    with pytest.raises(ConfigError, match="heart_beat"):
        load_settings(tmp_path / "b.toml", NEEDED)


def test_command_says_a_sentence_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent"],
        env={**NEEDED, "HETEROFLOW_AGENT_SERVER_URL": "http://hf.example"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("agent: server_url")
    assert "Traceback" not in done.stderr


# --- identity -------------------------------------------------------------------------------------


@pytest.mark.req("AGENT-01")
def test_identity_is_kept_and_closed_to_others(tmp_path: Path) -> None:
    place = StateDir(tmp_path / "state")
    place.open()
    first = place.load_identity()
    assert place.load_identity() == first
    assert len(first.secret) >= 32
    assert stat.S_IMODE((tmp_path / "state/identity.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert first.secret not in first.secret_sha256
    (tmp_path / "state/identity.json").write_text("{")
    with pytest.raises(ConfigError, match="identity"):
        place.load_identity()
    place.close()


@pytest.mark.req("AGENT-02")
def test_state_directory_is_one_agents_only(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    first.open()
    with pytest.raises(ConfigError, match="another agent"):
        second.open()
    first.close()
    second.close()
    second.open()
    second.close()


def test_machine_id_is_stable_and_not_the_raw_one(tmp_path: Path) -> None:
    raw = tmp_path / "machine-id"
    raw.write_text("0123456789abcdef0123456789abcdef\n")
    one = machine_id(Identity("s", "seed"), (str(raw),))
    assert one == machine_id(Identity("t", "other"), (str(raw),))
    assert one != raw.read_text().strip()
    raw.write_text("")
    assert machine_id(Identity("s", "a"), (str(raw),)) != machine_id(Identity("s", "b"), (str(raw),))


# --- cards and host -------------------------------------------------------------------------------


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"nvml {value}")
        self.value = value


def nvml(**changes: object) -> types.SimpleNamespace:
    """A driver with one card; `changes` replace its functions, an int makes one raise that code."""
    functions: dict[str, object] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"L20",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=48 << 30, used=1 << 30),
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=7),
        "nvmlDeviceGetTemperature": 50,
    }
    made = types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_DRIVER_NOT_LOADED=9,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_ERROR_UNKNOWN=999,
        NVML_TEMPERATURE_GPU=0,
    )
    for name, value in functions.items():
        setattr(made, name, lambda *_, v=value: v)
    failing = {"nvmlDeviceGetMigMode": 3, **changes}
    for name, code in failing.items():

        def fail(*_: object, code: object = code) -> None:
            raise NvmlError(int(str(code)))

        setattr(made, name, fail)
    return made


def test_card_is_read_whole() -> None:
    assert read_cards(nvml()) == [
        CardReport(
            uuid="GPU-1",
            index=0,
            vendor="nvidia",
            model="L20",
            vram_total_mb=48 * 1024,
            vram_used_mb=1024,
            temperature_c=50,
            utilization_percent=7,
            driver_version="580.1",
            compute_capability="8.9",
            mig_capable=False,
            mps_capable=True,
        )
    ]


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_means_no_cards(code: int) -> None:
    assert read_cards(nvml(nvmlInit=code)) == []


@pytest.mark.parametrize(
    "name", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"]
)
def test_driver_that_fails_is_unknown_and_not_empty(name: str) -> None:
    with pytest.raises(CardsUnknown):
        read_cards(nvml(**{name: 999}))


def test_value_that_fails_is_none_and_not_zero() -> None:
    (card,) = read_cards(nvml(nvmlDeviceGetMemoryInfo=999, nvmlDeviceGetUtilizationRates=3))
    assert card.vram_total_mb is None and card.vram_used_mb is None and card.utilization_percent is None
    assert card.temperature_c == 50


def test_this_machine_is_read_by_the_real_library() -> None:
    try:
        assert all(card.uuid for card in read_cards())
    except CardsUnknown as error:
        pytest.skip(f"this machine's driver does not answer: {error}")


async def test_failing_or_hanging_driver_repeats_the_last_cards_as_unknown(tmp_path: Path) -> None:
    card = CardReport("GPU-1", 0, "nvidia", "L20", vram_total_mb=10, vram_used_mb=5)
    hang = threading.Event()
    steps: list[object] = [[card], CardsUnknown("driver"), hang, [card]]

    def read() -> list[CardReport]:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, threading.Event):
            step.wait(5)
            return []
        return step  # type: ignore[return-value]

    readings = NodeReadings(make_settings(tmp_path, gpu_timeout_s=0.05), FakeRuntime(tmp_path), read)
    assert await readings.cards() == ([card], False)
    for _ in range(3):  # the third asks the hanging call again instead of starting another one
        cards, unknown = await readings.cards()
        assert unknown
        assert (cards[0].uuid, cards[0].vram_total_mb, cards[0].vram_used_mb) == ("GPU-1", 10, None)
    assert len(steps) == 1
    hang.set()
    await asyncio.sleep(0)


def test_host_and_listening_ports(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.cpu_count >= 1 and host.memory_total_mb > 100
    assert read_host(tmp_path / "missing").disk_used_percent is None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert listening_ports(port, port) == []
        listener.listen()
        assert listening_ports(port, port) == [port]
    assert listening_ports(port, port, (str(tmp_path / "none"),)) == []


# --- masking --------------------------------------------------------------------------------------


@pytest.mark.req("AGENT-10", "OPS-08")
@pytest.mark.parametrize(
    "text",
    [
        "key sk-abcdefgh12345678",
        "Authorization: Bearer abcdef.ghijkl",
        "HF hf_abcdefghijkl",
        "api_key=supersecretvalue",
        '"password": "supersecretvalue"',
        "MY_TOKEN = supersecretvalue",
    ],
)
def test_known_shapes_are_masked_in_place(text: str) -> None:
    masked = mask(text.encode()).decode()
    assert len(masked) == len(text)
    assert "****" in masked
    for secret in ("abcdefgh", "ghijkl", "supersecret"):
        assert secret not in masked


@given(st.binary(max_size=200))
def test_printable_keeps_length_and_is_text(raw: bytes) -> None:
    clean = printable(raw)
    assert len(clean) == len(raw)
    assert b"\0" not in clean
    clean.decode()


@given(
    st.text(min_size=4, max_size=20).filter(lambda s: "*" not in s),
    st.text(max_size=30),
    st.text(max_size=30),
)
def test_told_secrets_never_come_through(secret: str, before: str, after: str) -> None:
    raw = (before + secret + after).encode("utf-8", "replace")
    masked = mask(raw, [secret.encode("utf-8", "replace").decode()])
    assert len(masked) == len(raw)
    assert secret.encode("utf-8", "replace") not in masked


def test_words_about_tokens_are_left_alone() -> None:
    text = b"21 tokens per second, key rotation: none, secret of the sea"
    assert mask(text) == text


def test_log_filter_masks_arguments_too() -> None:
    masking = MaskingFilter()
    masking.add("node-secret-value")
    record = logging.LogRecord("a", 20, "", 0, "said %s", ("node-secret-value",), None)
    assert masking.filter(record)
    assert record.getMessage() == "said " + "*" * 17


def test_secret_values_go_by_name() -> None:
    assert secret_values({"HF_TOKEN": "abcdef", "LLAMA_ARG_CTX_SIZE": "4096", "K_KEY": "x"}) == ["abcdef"]


# --- the process runtime's rules ------------------------------------------------------------------


@pytest.mark.req("AGENT-03")
@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"task_type": TaskType.TRAINING}, Code.RUNTIME_CANNOT, "task_type"),
        ({"task_type": TaskType.CONTAINER}, Code.RUNTIME_CANNOT, "task_type"),
        ({"command": ["sh"]}, Code.RUNTIME_CANNOT, "command"),
        ({"volumes": ["/data"]}, Code.RUNTIME_CANNOT, "volumes"),
        ({"engine": "mine"}, Code.RUNTIME_CANNOT, "engine"),
        ({"engine": "", "image": "me/thing:1"}, Code.RUNTIME_CANNOT, "engine"),
        ({"engine": "sglang"}, Code.ENGINE_UNAVAILABLE, None),
        ({"ports": []}, Code.RUNTIME_CANNOT, "ports"),
        ({"task_id": "../../etc"}, Code.RUNTIME_CANNOT, "task_id"),
    ],
)
def test_process_runtime_refuses_by_name(changes: dict[str, object], code: Code, field: str | None) -> None:
    spec = make_spec(**changes)  # type: ignore[arg-type]
    why = refusal(spec, get_engine(spec.engine))
    assert why is not None
    assert (why.code, why.params.get("field")) == (code, field)
    assert refusal(make_spec(), get_engine("llamacpp")) is None


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


# --- left-overs -----------------------------------------------------------------------------------


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
