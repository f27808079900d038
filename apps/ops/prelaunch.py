"""What `manage.py up` settles before Django reads its settings: port, room, data directory, keys.

Standard library only. Leaves its answers in the environment, where the settings and the children
find them. Never touches the database.
"""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apps.ops import keys_file, preflight

ROOT = Path(__file__).resolve().parent.parent.parent
# Where to listen, and how this machine itself then reaches it.
LOCAL_ADDRESS = {
    "127.0.0.1": "127.0.0.1",
    "localhost": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",  # noqa: S104 - only where a person asks for it
    "::1": "[::1]",
    "::": "[::1]",
}
held_locks: list[int] = []  # open for as long as this process lives


def prepare(environ: "os._Environ[str] | dict[str, str]", scheme: str = "http") -> None:
    """Check and make what a start on one machine stands on. Raises NotReady."""
    host = environ.get("HOST") or "127.0.0.1"
    port = preflight.read_port(environ.get("PORT") or str(preflight.DEFAULT_PORT))
    runtime = environ.get("RUNTIME") or "process"
    if runtime not in ("process", "docker"):
        raise preflight.NotReady(
            f"RUNTIME={runtime} is not offered; leave it out (local processes), or use RUNTIME=docker."
        )
    if host not in LOCAL_ADDRESS:
        raise preflight.NotReady(
            f"HOST={host} is not offered; use 127.0.0.1 (this machine only) or 0.0.0.0 (all its addresses, "
            "behind a proxy with TLS)."
        )
    data_dir = Path(environ.get("DATA_DIR") or ROOT / "data").resolve()
    needs_mb = _read_mb("START_NEEDS_MB", environ.get("START_NEEDS_MB") or str(preflight.START_NEEDS_MB))
    preflight.check_port(host, port)
    preflight.check_room(data_dir, needs_mb, "start")
    preflight.make_data_dir(data_dir)
    held_locks.append(preflight.hold_data_dir(data_dir))
    keys_file.ensure_keys(data_dir)
    environ.update(HOST=host, PORT=str(port), RUNTIME=runtime, DATA_DIR=str(data_dir))
    environ.setdefault("PUBLIC_URL", f"{scheme}://{LOCAL_ADDRESS[host]}:{port}")


def named_data_dir(folder: Path) -> str:
    """What to add to `make` for it to find this data directory; "" for the usual one."""
    return "" if folder == ROOT / "data" else f"DATA_DIR={shlex.quote(str(folder))}"


def _read_mb(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise preflight.NotReady(f"{name}={text} is not a number of megabytes; leave it out, or give one.")
    return int(text)


def prepare_or_exit(prepare_all: Callable[[Any], None] = prepare) -> None:
    """For manage.py: one sentence and exit code 1 when something is missing.

    What this process and its children make from here on is nobody else's to read.
    """
    os.umask(0o077)
    try:
        prepare_all(os.environ)
    except preflight.NotReady as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(1)
