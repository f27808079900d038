"""Who this node is: its secret, its id, its machine, and this run's incarnation.

Owns the files `identity.json` and `agent.lock` in the state directory (0600). The secret never
leaves the machine: only its SHA-256 goes out with the join token, so that a join repeated after a
lost answer gives the same node (AGENT-01).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from pathlib import Path

import msgspec

from agent.config import ConfigError
from agent.wholefile import write_whole

_MACHINE_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid")


class Identity(msgspec.Struct):
    """What is kept between runs. `node_id` is "" until the server answered a join."""

    secret: str
    machine_seed: str
    node_id: str = ""

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Marks what this agent made in Docker; from the secret, so that it is known before the join
        and no other agent has it, and tells nothing of the secret."""
        return hashlib.sha256(f"heteroflow-label:{self.secret}".encode()).hexdigest()[:24]


class StateDir:
    """The agent's directory, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd: int | None = None

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def processes(self) -> Path:
        return self.path / "processes"

    def open(self) -> None:
        """Make the directories and take the lock.

        Raises ConfigError when it cannot be written, or when another agent holds it.
        """
        try:
            for folder in (self.path, self.logs, self.processes):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"state_dir = {self.path}: cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"state_dir = {self.path}: another agent runs with it. Stop that one first, or give this "
                "one a directory of its own."
            ) from error

    def close(self) -> None:
        """Give the lock back."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def load_identity(self) -> Identity:
        """The stored identity, or a new one (stored before it is used).

        Raises ConfigError when the file is damaged: a new secret would make another node.
        """
        file = self.path / "identity.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=Identity)
        except FileNotFoundError:
            made = Identity(secret=secrets.token_urlsafe(32), machine_seed=secrets.token_hex(16))
            self.save_identity(made)
            return made
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{file}: the node's identity cannot be read. Restore the file, or remove it and join again "
                "with a new token."
            ) from error

    def save_identity(self, identity: Identity) -> None:
        """Write the identity whole or not at all. Raises ConfigError when the disk refuses it."""
        file = self.path / "identity.json"
        try:
            write_whole(file, msgspec.json.encode(identity))
        except OSError as error:
            raise ConfigError(f"{file}: the node's identity cannot be written: {error.strerror}.") from error


def machine_id(identity: Identity, files: tuple[str, ...] = _MACHINE_FILES) -> str:
    """Names this machine, the same over restarts; a hash, since the raw id is not to be shown.

    Where the system has no id of its own, the one made with the identity is taken.
    """
    seed = identity.machine_seed
    for name in files:
        try:
            text = Path(name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue  # not there or not ours to read: the next source, in the end our own seed
        if len(text) >= 32 and set(text) != {"0"}:
            seed = text
            break
    return hashlib.sha256(f"heteroflow-agent:{seed}".encode()).hexdigest()[:32]


class Incarnation(msgspec.Struct, frozen=True):
    """This run of the agent. The server takes the newest by `started_at` (AGENT-02)."""

    id: str
    started_at: float


def new_incarnation() -> Incarnation:
    """Name this run, once at its start."""
    return Incarnation(id=f"inc-{secrets.token_hex(8)}", started_at=time.time())
