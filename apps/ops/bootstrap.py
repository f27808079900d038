"""The way from a bare machine to `manage.py up`: makes .venv, installs what is locked, hands over.

Run by the system's Python 3.11 (`make run`), so standard library only. Installs again only when a
lock file changed. Every refusal is one sentence and a non-zero exit; pip's own words go to a log.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from apps.ops import preflight
from apps.ops.preflight import NotReady

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = {"requirements.txt": [], "requirements-demo.txt": ["--no-deps"]}
# What tests and checks need besides; no start waits for it.
TOOLS: dict[str, list[str]] = {"requirements-dev.txt": []}
NO_REGISTRY = ("connection", "resolution", "timed out", "max retries", "no matching distribution", "proxy")


def check_python() -> None:
    """Refuse another Python, or one without venv. Raises NotReady."""
    if sys.version_info[:2] != (3, 11):
        have = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise NotReady(
            f"HeteroFlow needs Python 3.11, this is {have}; install it (apt-get install python3.11 "
            "python3.11-venv), or name it, as in: make run PYTHON=/path/to/python3.11"
        )
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        raise NotReady(
            "Python's venv module is missing; install it by: apt-get install python3.11-venv "
            "(on Debian 12 also: apt-get install python3-venv)"
        )


def digest(lock: Path) -> str:
    """What the stamp of an installed lock file holds."""
    return hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()


def stale_locks(root: Path, venv: Path, locks: Iterable[str] = LOCKS) -> list[str]:
    """Which of these lock files hold something else than what is installed."""
    return [
        name
        for name in locks
        if not (stamp := venv / f".installed-{name}").exists() or stamp.read_text() != digest(root / name)
    ]


def explain(log: str) -> str:
    """One sentence for a failed install, from pip's words."""
    words = log.lower()
    if "no space left" in words:
        return "The disk became full while installing; free some space and start again."
    if "do not match the hashes" in words:
        return "A downloaded package is not the locked one (its hash differs), so nothing was installed."
    if any(sign in words for sign in NO_REGISTRY):
        return (
            "The Python package registry can not be reached, and the libraries come from there; check the "
            "network, or point pip at a mirror (pip config set global.index-url ...), and start again."
        )
    return "Installing the libraries failed."


def run_logged(command: list[str], log: Path) -> bool:
    """Whether the command succeeded; its words are in `log`."""
    with log.open("w") as file:
        return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode == 0  # noqa: S603


def install(root: Path, venv: Path, locks: Mapping[str, list[str]] = LOCKS) -> None:
    """Make .venv hold what these lock files say; the values are pip's options. Raises NotReady."""
    stale = stale_locks(root, venv, locks)
    if not stale:
        return
    preflight.check_room(venv, preflight.INSTALL_NEEDS_MB, "install the libraries")
    python, log = venv / "bin" / "python", venv.with_name(venv.name + ".log")
    if not python.exists():
        print("Making the Python environment ...", flush=True)
        if not run_logged([sys.executable, "-m", "venv", "--clear", str(venv)], log):
            raise NotReady(f"The Python environment could not be made; see {log}.")
    for name in stale:
        print(f"Installing what {name} locks (once; minutes on a slow line) ...", flush=True)
        command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        command += [*locks[name], "--require-hashes", "-r", str(root / name)]
        if not run_logged(command, log):
            raise NotReady(f"{explain(log.read_text(errors='replace'))} Details: {log}")
        (venv / f".installed-{name}").write_text(digest(root / name))


def main(arguments: list[str] | None = None) -> int:
    """Check, install, and become the given command; without one, only install."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C shows no traceback
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--with-tools", action="store_true", help="install what tests and checks need, too")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="to run by .venv's Python, after --")
    options = parser.parse_args(arguments)
    command = [word for word in options.command if word != "--"]
    try:
        check_python()
        if command[:1] == ["manage.py"] and command[1:2] in (
            ["up"],
            ["run-production"],
        ):  # tell at once, not after minutes of installing
            preflight.check_port(
                os.environ.get("HOST") or "127.0.0.1",
                preflight.read_port(os.environ.get("PORT") or str(preflight.DEFAULT_PORT)),
            )
            if (os.environ.get("RUNTIME") or "process") == "process":
                preflight.check_openmp()
        folder = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # two starts beside each other install once
        install(ROOT, options.venv, LOCKS | TOOLS if options.with_tools else LOCKS)
        os.close(folder)
    except NotReady as refusal:
        print(refusal, file=sys.stderr)
        return 1
    if command:
        os.chdir(ROOT)
        os.execv(options.venv / "bin" / "python", [str(options.venv / "bin" / "python"), *command])  # noqa: S606
    return 0


if __name__ == "__main__":
    sys.exit(main())
