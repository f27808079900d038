"""A PostgreSQL cluster of our own: made once, run as a child, reached over loopback with a password.

As root it is made and run as Debian's account `postgres`, since PostgreSQL refuses root. Standard
library only. Never touches another cluster of the machine.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from apps.ops.children import Program
from apps.ops.preflight import NotReady, write_private

ACCOUNT = "postgres"
OWNER = "heteroflow"
STOP_S = 15.0


def account() -> str | None:
    """The account that the cluster runs as, where it isn't ours. Raises NotReady as root without it."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise NotReady(
            "PostgreSQL does not run as root, and its account `postgres` is missing; install by: "
            "apt-get install --no-install-recommends postgresql"
        ) from None
    return ACCOUNT


def ensure_cluster(programs: Path, folder: Path, password_file: Path) -> str:
    """Make the cluster unless it is there; returns the password of its owner. Raises NotReady."""
    user = account()
    if not password_file.exists():
        write_private(password_file, secrets.token_urlsafe(32))
    password = password_file.read_text()
    if (folder / "PG_VERSION").exists():
        _check_version(programs, folder)
        return password
    part = folder.with_name(f"{folder.name}.part")  # a killed initdb's looks like a cluster, and is none
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(mode=0o700)
    reader, writer = os.pipe()  # initdb reads the password as another account, without a file of its own
    try:
        if user is not None:
            owner = pwd.getpwnam(user)
            os.chown(part, owner.pw_uid, owner.pw_gid)
            _check_reachable(part, user)
            os.fchown(reader, owner.pw_uid, owner.pw_gid)
        os.write(writer, password.encode() + b"\n")
        os.close(writer)
        writer = -1
        command = [str(programs / "initdb"), "-D", str(part), f"--username={OWNER}", "--encoding=UTF8"]
        command += ["--auth=scram-sha-256", f"--pwfile=/dev/fd/{reader}", "--locale=C.UTF-8"]
        _run([*as_account(user), *command], pass_fds=(reader,))
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    part.rename(folder)
    return password


def as_account(user: str | None) -> list[str]:
    """What to put before a command so that it runs as the account; nothing for None."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []


def server_program(
    programs: Path, folder: Path, port: int, *, max_connections: int = 200, more: Sequence[str] = ()
) -> Program:
    """The server as a child, on loopback only and without a socket file."""
    settings = [
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        f"max_connections={max_connections}",
        "log_min_messages=fatal",
        "log_min_error_statement=panic",  # statements hold values
        "log_checkpoints=off",
        *more,
    ]
    arguments = ["-D", str(folder)]
    for setting in settings:
        arguments += ["-c", setting]
    return Program(
        "postgres",
        arguments,
        {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        stop_s=STOP_S,
        executable=str(programs / "postgres"),
        stop_signal=signal.SIGINT,  # its fast shutdown
        as_user=account(),
    )


def _check_version(programs: Path, folder: Path) -> None:
    have = (folder / "PG_VERSION").read_text().strip()
    runs = programs.parent.name
    if runs.isdigit() and have != runs:
        raise NotReady(
            f"{folder} was made by PostgreSQL {have}, and {runs} is installed. Where {have} still runs, make "
            "a backup (manage.py backup FILE). Copy secrets.json of this DATA_DIR into a new, empty one, "
            "start there with ARGS=--stores-only, and restore: without that file its secrets stay closed."
        )


def _check_reachable(folder: Path, user: str) -> None:
    probe = subprocess.run([*as_account(user), "test", "-w", str(folder)], check=False)  # noqa: S603
    if probe.returncode != 0:
        raise NotReady(
            f"{folder} can not be reached by the account {user}, which PostgreSQL runs as; choose a "
            "DATA_DIR= whose parent folders may be entered by everybody (chmod a+x), as in /srv/heteroflow."
        )


def _run(command: list[str], pass_fds: Sequence[int]) -> None:
    done = subprocess.run(  # noqa: S603
        command, pass_fds=pass_fds, capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise NotReady(
            f"The PostgreSQL cluster could not be made: {words[-1] if words else 'no reason given'}"
        )
