"""A Docker engine of the tests' own, and runtimes upon it."""

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import docker
import pytest

from agent.config import PullPolicy
from agent.contract.messages import PortMapping, TaskSpec
from agent.identity import StateDir
from agent.runtime.base import Adopted, Exit, Instance, Starting
from agent.runtime.docker_runtime import DockerRuntime
from tests.agent.fakes import make_settings, make_spec
from tests.fakes.docker.engines import DockerNode, docker_node, sweep
from tests.fakes.tiny_model import make_tiny_model
from tools.engine_image import build

__all__ = ["docker_node"]
PYTHON = "/usr/local/bin/python3"
T = TypeVar("T")


def wait_for(ask: Callable[[], T], what: str, seconds: float = 30.0) -> T:
    """The first answer that is true."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Bench:
    """One agent's runtime on the engine; `again` is its next run."""

    def __init__(self, node: DockerNode, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.label = secrets.token_hex(12)
        self.api: docker.APIClient = node.api
        self.models = folder / "models"
        make_tiny_model(self.models / "tiny")
        self.again()

    def again(self, **changes: object) -> DockerRuntime:
        values: dict[str, object] = {
            "docker_host": self.node.socket,
            "docker_poll_s": 0.1,
            "allowed_volume_prefixes": [str(self.models)],
            "memory_limit_mb": 256,
            "disk_floor_mb": 0,
            "pull_policy": PullPolicy.NEVER,
            "container_user": "",
            **changes,
        }
        if hasattr(self, "runtime"):
            self.runtime.close(0)
        place = StateDir(self.folder / "state")
        place.open()
        place.close()
        settings = make_settings(self.folder / "state", **values)
        self.runtime = DockerRuntime(settings, place, agent=self.label, node=lambda: "node-test")
        wait_for(self.runtime.answers, "Docker answers")
        return self.runtime

    def engine(self, **changes: object) -> TaskSpec:
        """A service with the tiny model."""
        return make_spec(
            f"task-{secrets.token_hex(8)}",
            **{
                "model_path": str(self.models / "tiny"),
                "ports": [PortMapping(8080, free_port())],
                "engine_key": "engine-key-of-this-test",
                **changes,
            },
        )

    def script(self, code: str, **changes: object) -> TaskSpec:
        """A plain container that runs some Python: the image's entry point is replaced by an engine-less
        image of the same content."""
        return make_spec(
            f"task-{secrets.token_hex(8)}",
            **{"engine": "", "image": PLAIN, "model_path": "", "ports": [], "command": [PYTHON, "-uc", code]}
            | changes,
        )

    def start(self, spec: TaskSpec) -> Instance:
        """Ask until it is started. Raises what the runtime raises."""

        def ask() -> Instance | None:
            begun = self.runtime.start(spec)
            return None if isinstance(begun, Starting) else begun

        return wait_for(ask, f"{spec.task_id} started")

    def end(self, instance: Instance) -> Exit:
        return wait_for(lambda: self.runtime.poll(instance), "ended")

    def adopted(self) -> list[Adopted]:
        return wait_for(self.runtime.adoptable, "adopted")

    def log(self, instance: Instance) -> str:
        file = self.runtime.log_file(instance.task_id, instance.attempt)
        return file.read_text() if file.exists() else ""

    def mine(self) -> list[dict[str, str]]:
        """This agent's containers, as Docker says."""
        return self.api.containers(all=True, filters={"label": f"heteroflow.agent={self.label}"})

    def networks(self) -> list[dict[str, str]]:
        return self.api.networks(filters={"label": f"heteroflow.agent={self.label}"})


PLAIN = "example/plain:1"


@pytest.fixture(scope="session")
def plain_image(docker_node: DockerNode) -> str:
    """Python alone, without an entry point."""
    build(docker_node.socket, PLAIN, package=None, changes=["WORKDIR /"])
    return PLAIN


@pytest.fixture
def bench(docker_node: DockerNode, plain_image: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(docker_node, tmp_path)
    yield made
    made.runtime.close(0)
    sweep(made.api, f"heteroflow.agent={made.label}")
