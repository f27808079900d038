"""What must hold before anything is installed or started, each refusal one sentence with the way out.

Owns the checks of ports, room on the disk and the data directory. Standard library only: it runs
before the libraries are there. Never installs or starts anything.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import socket
from pathlib import Path

MB = 1024 * 1024
INSTALL_NEEDS_MB = 1500  # measured: libraries 730 MB, demo model 190 MB, pip's own copies while it works
START_NEEDS_MB = 300  # the demo model's copy, the database and its write-ahead log, logs
DEFAULT_PORT = 3333


class NotReady(Exception):
    """Something outside of us is missing; the text is the whole sentence for the person who started us."""


def read_port(text: str) -> int:
    """The port number in `text`. Raises NotReady."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise NotReady(f"PORT={text} is not a port number; choose one from 1 to 65535, as in PORT=8080.")
    return int(text)


def check_port(host: str, port: int) -> None:
    """Refuse a port that something else listens on. Raises NotReady."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotReady(
                    f"Port {port} on {host} is in use by something else; stop that, or choose another port, "
                    f"as in: make run PORT={port + 1 if port < 65535 else 3333}"
                ) from None
            raise NotReady(f"HOST={host} with PORT={port} can not be used: {error.strerror}.") from None


def check_openmp(library: str = "libgomp.so.1") -> None:
    """Refuse where llama.cpp could not start: its wheel leaves OpenMP to the machine. Raises NotReady."""
    try:
        ctypes.CDLL(library)
    except OSError:
        raise NotReady(
            f"llama.cpp needs {library}, which is not here; install it by: apt-get install libgomp1 "
            "(or run engines in containers: RUNTIME=docker)"
        ) from None


def check_room(folder: Path, needed_mb: int, what: str) -> None:
    """Refuse when the file system of `folder` has less than `needed_mb` free. Raises NotReady."""
    there = folder
    while not there.exists():
        there = there.parent
    free_mb = shutil.disk_usage(there).free // MB
    if free_mb < needed_mb:
        raise NotReady(
            f"The disk is too full to {what}: {needed_mb} MB are needed under {folder}, {free_mb} MB are "
            "free; free some, or choose another place by DATA_DIR=."
        )


def make_data_dir(folder: Path) -> None:
    """Make the data directory with mode 0700, and what an earlier start left open in it 0600. Raises
    NotReady."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for database in folder.glob("*.sqlite3*"):
            database.chmod(0o600)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise NotReady(
            f"DATA_DIR={folder} can not be written: {error.strerror}; choose another by DATA_DIR=."
        ) from None


def hold_data_dir(folder: Path) -> int:
    """Lock the data directory for this process; the lock goes with the returned file descriptor.

    Raises NotReady while another start of ours uses it.
    """
    held = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise NotReady(
            f"HeteroFlow already runs with DATA_DIR={folder}; stop that one, or choose another by DATA_DIR=."
        ) from None
    return held


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, whole or not at all. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)
