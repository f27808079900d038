"""Private Docker engines for tests, with the llama.cpp image in each.

Owns their life: made once a test session, at most two tries, torn down at its end. Fails, and does not
skip, where Docker cannot start: a suite that leaves containers out proves nothing about them.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import psutil
import pytest

from tools.engine_image import TAG, build

SCRIPT = Path(__file__).with_name("nodes.sh")
NEEDED = ("dockerd", "docker", "iptables", "ip", "strip", "curl")


@dataclass(frozen=True)
class DockerNode:
    """One engine. `address` is where its host side is reached from here."""

    folder: Path
    address: str

    @property
    def socket(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def api(self) -> docker.APIClient:
        return docker.APIClient(base_url=self.socket, version="auto", timeout=60)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def kill(self) -> None:
        """End dockerd as a crash would; containers run on."""
        process = psutil.Process(self.pid)
        process.kill()
        process.wait(10)

    def restart(self) -> None:
        """Start it again after `kill`."""
        try:
            run("restart", str(self.folder))
        except subprocess.CalledProcessError as error:
            pytest.fail(f"dockerd did not come back: {error.stderr}")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words], check=True, capture_output=True, text=True, timeout=90
    )


@contextmanager
def docker_nodes(count: int, mode: str = "loopback") -> Iterator[list[DockerNode]]:
    """`count` engines, each with the engine image, for as long as the block runs."""
    missing = [name for name in NEEDED if not any((Path(p) / name).exists() for p in search_path())]
    if missing or os.getuid() != 0:
        pytest.fail(
            f"Docker cannot be started: as root it needs docker.io, iptables, iproute2, binutils and curl of "
            f"Debian; missing: {missing or 'root'}"
        )
    with tempfile.TemporaryDirectory(prefix="hfd", ignore_cleanup_errors=True) as folder:
        try:
            for last in (False, True):
                try:
                    run("start", str(count), folder, mode)
                    break
                except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                    run("stop", folder)
                    if last:
                        pytest.fail(f"Docker did not start twice: {error.stderr}")
                    time.sleep(1)
            nodes = []
            for number in range(1, count + 1):
                place = Path(folder) / f"node{number}"
                nodes.append(DockerNode(place, (place / "ip").read_text().strip()))
                build(nodes[-1].socket, TAG)
            yield nodes
        finally:
            run("stop", folder)


def sweep(api: docker.APIClient, label: str) -> None:
    """Remove all that bears this label; what somebody else is removing goes by itself."""
    for row in api.containers(all=True, filters={"label": label}):
        try:
            api.remove_container(row["Id"], force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code not in (404, 409):
                raise
    for network in api.networks(filters={"label": label}):
        try:
            api.remove_network(network["Id"])
        except docker.errors.APIError as error:
            if error.status_code not in (403, 404):
                raise


def search_path() -> list[str]:
    return [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]


@pytest.fixture(scope="session")
def docker_node() -> Iterator[DockerNode]:
    """One engine for the whole session of this worker."""
    with docker_nodes(1) as (node,):
        yield node
