"""`make run` where something is missing: one sentence, and an exit code that is not 0 (OPS-01)."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import ROOT, clean_environment, free_port

pytestmark = pytest.mark.slow


def make_run(tmp_path: Path, door: str = "run", **environment: str) -> "subprocess.CompletedProcess[str]":
    variables = {"DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port()), **environment}
    return subprocess.run(
        ["make", "--no-print-directory", door],
        cwd=ROOT,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def sentence(run: "subprocess.CompletedProcess[str]") -> str:
    """What it said, without make's own line about the failed target."""
    assert run.returncode != 0
    said = [line for line in (run.stdout + run.stderr).splitlines() if not line.startswith("make: ")]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.req("OPS-01")
def test_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = sentence(make_run(tmp_path, PORT=str(port)))
    assert said.startswith(f"Port {port} on 127.0.0.1 is in use")
    assert f"PORT={port + 1}" in said
    assert not (tmp_path / "data").exists()


def test_full_disk(tmp_path: Path) -> None:
    said = sentence(make_run(tmp_path, START_NEEDS_MB="999999999999"))
    assert "too full to start: 999999999999 MB are needed" in said


def test_python_that_is_not_there(tmp_path: Path) -> None:
    assert "needs Python 3.11 with venv, and python9 is not there" in sentence(
        make_run(tmp_path, PYTHON="python9")
    )


@pytest.mark.parametrize("door", ["run", "run-production"])
def test_docker_that_does_not_answer(tmp_path: Path, door: str) -> None:
    told = sentence(make_run(tmp_path, door, RUNTIME="docker", DOCKER_HOST=f"unix://{tmp_path}/none.sock"))
    assert "Docker does not answer at unix://" in told and "leave RUNTIME out" in told
    assert not (tmp_path / "data" / "postgresql").exists()


def test_data_dir_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can not be written" in sentence(make_run(tmp_path, DATA_DIR=str(tmp_path / "file" / "data")))


@pytest.mark.req("OPS-01")
def test_ctrl_c_during_the_start_shows_no_traceback(tmp_path: Path) -> None:
    variables = {"DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())}
    start = subprocess.Popen(
        [sys.executable, "-u", "manage.py", "up", "--no-demo"],
        cwd=ROOT,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert start.stdout is not None
    with start.stdout:
        said = start.stdout.readline()
        start.send_signal(signal.SIGINT)  # in the middle of the migrations
        said += start.stdout.read()
    assert start.wait(timeout=30) == -signal.SIGINT
    assert said == "Preparing the database ...\n"
