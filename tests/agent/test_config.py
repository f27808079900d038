"""Settings: file, environment, refusals in sentences; the node's identity."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import ConfigError, load_settings
from agent.contract.states import RuntimeKind
from agent.identity import Identity, StateDir, machine_id

NEEDED = {"HETEROFLOW_AGENT_SERVER_URL": "https://hf.example", "HETEROFLOW_AGENT_STATE_DIR": "/var/lib/x"}


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
        ("PULL_POLICY", "sometimes", "not usable"),
        ("RUNTIME", "podman", "not usable"),
        ("PORT_RANGE", "5-4", "port_range"),
        ("PORT_RANGE", "many", "not usable"),
        ("HEARTBEAT_S", "0", "heartbeat_s"),
        ("HEARTBEAT_S", "soon", "not usable"),
        ("ALLOWED_VOLUME_PREFIXES", "models", "absolute"),
        ("STATE_DIR", "state", "absolute"),
        ("STATE_DIR", "", "absolute path"),
        ("ENGINE_THREADS", "0", "engine_threads"),
        ("MEMORY_LIMIT_MB", "-1", "memory_limit_mb"),
        ("SERVER_SHA256", "ab", "64"),
        ("DIAL", "tunnel", "not usable"),
        ("DOOR_PORT", "65536", "door_port = 65536"),
        ("DOOR_CONNECTIONS", "0", "door_connections"),
        ("DOOR_LINE_S", "0", "door_line_s"),
    ],
)
def test_wrong_setting_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(None, {**NEEDED, f"HETEROFLOW_AGENT_{name}": value})


@pytest.mark.req("AGENT-16")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DOCKER_HOST", "tcp://10.0.0.1:2375", "docker_host"),
        ("ENGINE_HOST", "0.0.0.0", "engine_host"),
        ("PIDS_LIMIT", "0", "pids_limit"),
        ("CPU_LIMIT", "-1", "cpu_limit"),
        ("CONTAINER_USER", "nobody", "container_user"),
    ],
)
def test_wrong_setting_of_the_docker_runtime_is_named(name: str, value: str, words: str) -> None:
    docker = {**NEEDED, "HETEROFLOW_AGENT_RUNTIME": "docker"}
    assert load_settings(None, docker).runtime is RuntimeKind.DOCKER
    with pytest.raises(ConfigError, match=words):
        load_settings(None, {**docker, f"HETEROFLOW_AGENT_{name}": value})


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


@pytest.mark.req("AGENT-16")
@pytest.mark.parametrize(
    ("url", "dial", "door"),
    [
        ("http://127.0.0.1:3333", None, False),
        ("http://localhost:3333", None, False),
        ("https://10.0.0.1", None, True),
        ("https://heteroflow.lan", None, True),
        ("http://127.0.0.1:3333", "door", True),
        ("https://10.0.0.1", "direct", False),
    ],
)
def test_engines_are_dialled_directly_on_the_servers_machine_only(
    url: str, dial: str | None, door: bool
) -> None:
    environment = {**NEEDED, "HETEROFLOW_AGENT_SERVER_URL": url}
    if dial is not None:
        environment["HETEROFLOW_AGENT_DIAL"] = dial
    assert load_settings(None, environment).has_door is door
