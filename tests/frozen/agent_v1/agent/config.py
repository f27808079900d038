"""The agent's settings: a TOML file, each value overridable by HETEROFLOW_AGENT_* (AGENT-01).

Owns names, defaults and refusals. Never reads a secret from the command line.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.contract.states import RuntimeKind
from agent.models.paths import PathRules, normalise

ENV_PREFIX = "HETEROFLOW_AGENT_"


class ConfigError(Exception):
    """A setting that cannot be used; the sentence names it, its value, the rule and the way out."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. Durations in seconds (`_s`). Paths absolute."""

    server_url: str
    state_dir: str
    join_token: str = ""
    join_token_file: str = ""
    server_sha256: str = ""  # the server certificate's fingerprint, from the join line
    runtime: RuntimeKind = RuntimeKind.PROCESS
    dial_host: str = "127.0.0.1"
    engine_host: str = "127.0.0.1"
    allowed_volume_prefixes: list[str] = []
    denied_volume_prefixes: list[str] = []
    relative_model_root: str = "/data/models"
    port_range: tuple[int, int] = (20000, 20999)
    engine_threads: int = 1
    log_level: str = "INFO"
    heartbeat_s: float = 5.0
    request_timeout_s: float = 10.0
    step_s: float = 0.25
    claim_retry_s: float = 15.0
    port_wait_s: float = 119.0  # AGENT-07
    loading_probe_s: float = 0.5
    load_cap_s: float = 3600.0  # progress extends the start period up to here
    stall_s: float = 120.0  # requests in work, no step done
    stall_cpu_s: float = 900.0  # without a card one step over a long prompt may take minutes
    orphan_grace_s: float = 30.0
    gone_repeat_s: float = 30.0
    shutdown_s: float = 4.0
    log_round_s: float = 1.0
    log_lines_a_round: int = 2000  # AGENT-10
    leftover_log_delay_s: float = 10.0
    log_keep_s: float = 86400.0
    engine_probe_heartbeats: int = 20  # AGENT-11
    gpu_timeout_s: float = 3.0

    @property
    def path_rules(self) -> PathRules:
        """The prefixes as the path checks take them."""
        return PathRules(
            allowed=tuple(self.allowed_volume_prefixes),
            denied=tuple(self.denied_volume_prefixes),
            relative_root=self.relative_model_root,
        )


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
    for name in ("server_url", "state_dir"):
        if not raw.get(name):
            raise ConfigError(
                f"{name} is not set. Put it into the configuration file or into {ENV_PREFIX}{name.upper()}."
            )
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
        raise ConfigError(
            "runtime = docker is not available in this version: it arrives with the Docker runtime. "
            "Use runtime = process."
        )
    low, high = settings.port_range
    if not 1024 <= low <= high <= 65535:
        raise ConfigError(f"port_range = {low}-{high}: must be LOW-HIGH between 1024 and 65535.")
    for name in ("allowed_volume_prefixes", "denied_volume_prefixes"):
        for prefix in getattr(settings, name):
            if normalise(prefix) is None:
                raise ConfigError(
                    f"{name}: {prefix!r} is not an absolute path. Write it from the root: /data/models."
                )
    if not Path(settings.state_dir).is_absolute():
        raise ConfigError(f"state_dir = {settings.state_dir!r}: must be an absolute path.")
    if settings.engine_threads < 1:
        raise ConfigError(f"engine_threads = {settings.engine_threads}: must be 1 or more.")
    for field in msgspec.structs.fields(Settings):
        if field.name.endswith("_s") and getattr(settings, field.name) <= 0:
            raise ConfigError(f"{field.name} = {getattr(settings, field.name)}: must be more than 0 seconds.")
    if settings.server_sha256:
        digits = settings.server_sha256.replace(":", "")
        if len(digits) != 64 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise ConfigError(
                f"server_sha256 = {settings.server_sha256!r}: must be 64 hexadecimal digits, "
                "as in the join line."
            )


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
