"""The agent's settings: a TOML file, each value overridable by HETEROFLOW_AGENT_* (AGENT-01).

Owns names, defaults and refusals. Never reads a secret from the command line.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.contract.messages import PORT_RANGE
from agent.contract.states import RuntimeKind
from agent.models.paths import PathRules, normalise

ENV_PREFIX = "HETEROFLOW_AGENT_"


class PullPolicy(StrEnum):
    """When an image is fetched (AGENT-19)."""

    IF_ABSENT = "if_absent"
    NEVER = "never"
    ALWAYS = "always"


class TpIpc(StrEnum):
    """What processes share memory with where an inference container has more than one card (AGENT-06)."""

    PRIVATE = "private"
    HOST = "host"


class LogFormat(StrEnum):
    """Lines for people, or one JSON object a line for what collects logs."""

    LINE = "line"
    JSON = "json"


class ConfigError(Exception):
    """A setting that cannot be used; the sentence names it, its value, the rule and the way out."""


class Dial(StrEnum):
    """How the gateway reaches this node's engines: on their own ports (embedded, same machine), or
    through the node's one TLS port (AGENT-16)."""

    DIRECT = "direct"
    DOOR = "door"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. Durations in seconds (`_s`). Paths absolute."""

    server_url: str
    state_dir: str = "/var/lib/heteroflow-agent"
    join_token: str = ""
    join_token_file: str = ""
    server_sha256: str = ""  # the server certificate's fingerprint, from the join line
    runtime: RuntimeKind = RuntimeKind.PROCESS
    dial: Dial | None = None  # None: direct where the server is on this machine, else through the door
    dial_host: str = "127.0.0.1"
    door_host: str = "0.0.0.0"  # noqa: S104 - the door is there to be reached from the server
    door_port: int = 0  # any free one
    door_advertise_host: str = ""  # "" = door_host, or this machine's address towards the server
    door_connections: int = 1024
    door_line_s: float = 5.0
    door_connect_s: float = 3.0
    door_linger_s: float = 60.0
    engine_host: str = "127.0.0.1"
    allowed_volume_prefixes: list[str] = []
    denied_volume_prefixes: list[str] = []
    relative_model_root: str = "/data/models"
    port_range: tuple[int, int] = PORT_RANGE
    engine_threads: int = 1
    log_level: str = "INFO"
    log_format: LogFormat = LogFormat.LINE
    metrics_port: int = 0  # of the agent's own /metrics; 0 = none
    metrics_host: str = "127.0.0.1"
    metrics_token: str = ""  # asked for from whoever reads them; needed where others can reach the port
    heartbeat_s: float = 5.0
    request_timeout_s: float = 10.0
    step_s: float = 0.25
    claim_retry_s: float = 15.0
    port_wait_s: float = 119.0  # AGENT-07
    loading_probe_s: float = 0.5
    load_cap_s: float = 3600.0  # progress extends the start period up to here
    stall_s: float = 120.0  # requests in work, no step done
    stall_cpu_s: float = 900.0  # without a card one step over a long prompt may take minutes
    sleep_call_s: float = 30.0  # for an engine's own sleep call; it is stopped afterwards in any case
    canary_s: float = 60.0  # after a wake, from healthy to the first token
    orphan_grace_s: float = 30.0
    gone_repeat_s: float = 30.0
    adopted_grace_s: float = 10.0  # TERM to KILL for what was adopted and is not listed
    shutdown_s: float = 4.0
    file_timeout_s: float = 120.0  # for one piece of a file (AGENT-12)
    log_round_s: float = 1.0
    log_lines_a_round: int = 2000  # AGENT-10
    log_round_kb: int = 4096  # of one log
    log_copy_mb: int = 256  # room on this disk for one attempt's log; the oldest part goes first
    log_copies_mb: int = 1024  # for all, and for reports that wait; what the server has goes first
    leftover_log_delay_s: float = 10.0
    log_keep_s: float = 86400.0
    engine_probe_heartbeats: int = 20  # AGENT-11
    gpu_timeout_s: float = 3.0
    card_free_s: float = 60.0  # for memory of an ended attempt to be given back; then quarantine
    card_slack_mb: int = 512  # more than before, with no process named: still held
    # runtime = docker
    docker_host: str = "unix:///var/run/docker.sock"
    docker_timeout_s: float = 60.0
    docker_poll_s: float = 0.5
    docker_silence_s: float = 10.0  # so long without an answer: health is not judged
    pull_policy: PullPolicy = PullPolicy.IF_ABSENT  # AGENT-19
    pull_deadline_s: float = 3600.0
    disk_floor_mb: int = 10240  # free on Docker's disk, or nothing is pulled
    memory_limit_mb: int = 0  # a container's or a cardless engine process's; 0 = 9/10 of the host's
    cpu_limit: float = 0.0  # processors a container; 0 = all
    pids_limit: int = 4096
    log_file_mb: int = 10
    log_files: int = 3
    container_user: str = ""  # UID[:GID]; "" = the image's own
    tp_ipc: TpIpc = TpIpc.PRIVATE  # host: on a node of one tenant only, tasks see each other's shared memory
    network_egress: bool = False  # whether containers may open connections to the outside
    stop_on_leave: bool = False  # end the containers with the agent instead of adopting them later
    pass_cards: bool = True  # for tests on machines without cards only: False leaves them out

    @property
    def has_door(self) -> bool:
        """Whether the gateway comes through this node's door (AGENT-16)."""
        if self.dial is None:
            return not _is_loopback(urlsplit(self.server_url).hostname or "")
        return self.dial == Dial.DOOR

    @property
    def path_rules(self) -> PathRules:
        """The prefixes as the path checks take them."""
        return PathRules(
            allowed=tuple(self.allowed_volume_prefixes),
            denied=tuple(self.denied_volume_prefixes),
            relative_root=self.relative_model_root,
        )

    @property
    def kept_paths(self) -> tuple[str, ...]:
        """Host paths that nothing may mount or read, whatever the prefixes allow: the agent's own folder
        and Docker's socket."""
        return self.state_dir, self.docker_host.removeprefix("unix://")


def load_settings(file: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the file (None: environment alone), lay the environment over it, and check.

    Raises ConfigError.
    """
    raw: dict[str, Any] = {}
    if file is not None:
        try:
            raw = tomllib.loads(file.read_text())
        except OSError as error:
            raise ConfigError(f"The configuration file {file} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The configuration file {file} is not TOML: {error}.") from error
    for field in msgspec.structs.fields(Settings):
        text = environ.get(ENV_PREFIX + field.name.upper())
        if text is not None:
            raw[field.name] = _from_text(field.name, field.type, text)
    if not raw.get("server_url"):
        name = ENV_PREFIX + "SERVER_URL"
        raise ConfigError(f"server_url is not set. Put it into the configuration file or into {name}.")
    try:
        settings = msgspec.convert(raw, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"The configuration is not usable: {error}.") from error
    _check(settings)
    return settings


def _from_text(name: str, kind: Any, text: str) -> Any:
    """Lists come separated by `:`, the port range as LOW-HIGH; all else is converted by msgspec."""
    if name == "port_range":
        low, _, high = text.partition("-")
        return [low, high]
    if kind == list[str]:
        return [part for part in text.split(":") if part]
    return text


def _check(settings: Settings) -> None:
    check_server_url(settings.server_url)
    if settings.runtime is RuntimeKind.DOCKER:
        _check_docker(settings)
    low, high = settings.port_range
    if not 1024 <= low <= high <= 65535:
        raise ConfigError(f"port_range = {low}-{high}: must be LOW-HIGH between 1024 and 65535.")
    _check_door(settings)
    _check_metrics(settings)
    _check_logs(settings)
    for name in ("allowed_volume_prefixes", "denied_volume_prefixes"):
        for prefix in getattr(settings, name):
            if normalise(prefix) is None:
                raise ConfigError(
                    f"{name}: {prefix!r} is not an absolute path. Write it from the root: /data/models."
                )
    if not Path(settings.state_dir).is_absolute():
        raise ConfigError(f"state_dir = {settings.state_dir!r}: must be an absolute path.")
    _check_numbers(settings)
    if settings.server_sha256:
        digits = settings.server_sha256.replace(":", "")
        if len(digits) != 64 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise ConfigError(
                f"server_sha256 = {settings.server_sha256!r}: must be 64 hexadecimal digits, "
                "as in the join line."
            )


def _check_numbers(settings: Settings) -> None:
    for name, least in (("engine_threads", 1), ("memory_limit_mb", 0)):
        if getattr(settings, name) < least:
            raise ConfigError(f"{name} = {getattr(settings, name)}: must be {least} or more.")
    for field in msgspec.structs.fields(Settings):
        if field.name.endswith("_s") and getattr(settings, field.name) <= 0:
            raise ConfigError(f"{field.name} = {getattr(settings, field.name)}: must be more than 0 seconds.")


def _check_docker(settings: Settings) -> None:
    if not settings.docker_host.startswith("unix:///"):
        raise ConfigError(
            f"docker_host = {settings.docker_host!r}: must be unix:///PATH, since mounts and loopback ports "
            "are those of this machine. Run an agent on each machine that has a Docker engine."
        )
    if not _is_loopback(settings.engine_host):
        raise ConfigError(
            f"engine_host = {settings.engine_host!r}: must be a loopback address, since engines are "
            "published there and nothing else may reach them (AGENT-16). Use 127.0.0.1."
        )
    for name in ("disk_floor_mb", "cpu_limit"):
        if getattr(settings, name) < 0:
            raise ConfigError(f"{name} = {getattr(settings, name)}: must be 0 or more.")
    for name in ("pids_limit", "log_file_mb", "log_files"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} = {getattr(settings, name)}: must be 1 or more.")
    if not re.fullmatch(r"(\d{1,9}(:\d{1,9})?)?", settings.container_user):
        raise ConfigError(
            f"container_user = {settings.container_user!r}: must be UID or UID:GID in digits, or empty."
        )


def _check_logs(settings: Settings) -> None:
    for name in ("log_lines_a_round", "log_round_kb", "log_copy_mb", "log_copies_mb"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} = {getattr(settings, name)}: must be 1 or more.")


def _check_metrics(settings: Settings) -> None:
    if not 0 <= settings.metrics_port <= 65535:
        raise ConfigError(f"metrics_port = {settings.metrics_port}: must be from 0 (none) to 65535.")
    if settings.metrics_port and not settings.metrics_token and not _is_loopback(settings.metrics_host):
        raise ConfigError(
            f"metrics_host = {settings.metrics_host!r}: others can read the metrics there, so metrics_token "
            "must be set too. Or leave it at 127.0.0.1."
        )


def _check_door(settings: Settings) -> None:
    if not 0 <= settings.door_port <= 65535:
        raise ConfigError(f"door_port = {settings.door_port}: must be from 0 (any) to 65535.")
    if settings.door_connections < 1:
        raise ConfigError(f"door_connections = {settings.door_connections}: must be 1 or more.")


def check_server_url(url: str) -> None:
    """Refuse an address that would send the node's secret in the clear (AGENT-01).

    Raises ConfigError unless it is https://, or http:// to loopback.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"server_url = {url!r}: must be https://HOST[:PORT][/PATH].")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(
            f"server_url = {url!r}: http:// is accepted to loopback only, since the node's secret would "
            "travel in the clear. Use https:// and give the certificate's fingerprint as server_sha256."
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
