"""A Docker engine of the tests' own, and runtimes and whole agents upon it."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import docker
import pytest

from agent.config import PullPolicy
from agent.contract.messages import DesiredTask, HealthCheck, PortMapping, SleepOrder, TaskSpec
from agent.contract.states import Desired, Phase
from agent.identity import StateDir
from agent.runtime.base import Adopted, Exit, Instance, Starting
from agent.runtime.docker_runtime import DockerRuntime
from apps.core.free_ports import free_ports
from tests.agent.fakes import make_settings, make_spec
from tests.fakes.docker.engines import DockerNode, sweep
from tests.fakes.fake_server import TOKEN, FakeServer
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.vllm.image import build_fake_vllm
from tools.engine_image import build

PYTHON = "/usr/local/bin/python3"
PLAIN = "example/plain:1"
KEY = "engine-key-of-this-test"
ROOT = Path(__file__).parents[3]
T = TypeVar("T")


@pytest.fixture(scope="session")
def vllm_image(docker_node: DockerNode) -> str:
    return build_fake_vllm(docker_node.socket)


def wait_for(ask: Callable[[], T], what: str, seconds: float = 30.0) -> T:
    """The first answer that is true."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return answer


def free_port() -> int:
    return free_ports(1)[0]


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


@dataclass
class Machine:
    """A server, a Docker engine, and an agent that may be ended and started again."""

    server: FakeServer
    node: DockerNode
    folder: Path
    api: docker.APIClient
    agents: list[asyncio.subprocess.Process] = field(default_factory=list)
    task: str = field(default_factory=lambda: f"task-{secrets.token_hex(8)}")

    async def start(self, **settings: str) -> asyncio.subprocess.Process:
        chosen = {
            "SERVER_URL": self.server.url,
            "STATE_DIR": str(self.folder / "state"),
            "JOIN_TOKEN": TOKEN,
            "ALLOWED_VOLUME_PREFIXES": str(self.folder / "models"),
            "RUNTIME": "docker",
            "DOCKER_HOST": self.node.socket,
            "DOCKER_POLL_S": "0.1",
            "PULL_POLICY": "never",
            "MEMORY_LIMIT_MB": "256",
            "HEARTBEAT_S": "0.5",
            "LOG_ROUND_S": "0.1",
            "LEFTOVER_LOG_DELAY_S": "0.5",
            "ORPHAN_GRACE_S": "1",
            **settings,
        }
        env = {"PATH": os.environ["PATH"], **{f"HETEROFLOW_AGENT_{k}": v for k, v in chosen.items()}}
        with (self.folder / "agent.log").open("ab") as out:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent", cwd=ROOT, env=env, stdout=out, stderr=out
            )
        self.agents.append(agent)
        return agent

    async def wait_for(self, true: Callable[[], object], what: str, seconds: float = 40.0) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not true():
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"{what}: not within {seconds} s\n{(self.folder / 'agent.log').read_text()}")
            await asyncio.sleep(0.05)

    def want(self, spec: TaskSpec, desired: Desired = Desired.RUN, sleep: SleepOrder | None = None) -> None:
        listed = DesiredTask(spec.task_id, spec.attempt, desired, stop_grace_seconds=5, sleep=sleep)
        self.server.want(spec, listed)

    async def serve(self) -> int:
        """Have an engine ready; its port."""
        port = free_port()
        self.want(
            make_spec(
                self.task,
                model_path=str(self.folder / "models" / "tiny"),
                ports=[PortMapping(8080, port)],
                engine_key=KEY,
                health_check=HealthCheck(interval_seconds=0.3, start_period_seconds=10),
                env={"MY_SECRET_TOKEN": "of-the-user-1234"},
            )
        )
        await self.wait_for(lambda: self.server.told(self.task, phase=Phase.READY), "ready")
        return port

    async def kill(self) -> None:
        """End the newest run of the agent as a crash would."""
        self.agents[-1].kill()
        await self.agents[-1].wait()

    def script(self, code: str) -> None:
        """Have a plain container that runs this Python."""
        self.want(
            make_spec(
                self.task,
                engine="",
                image=PLAIN,
                model_path="",
                ports=[],
                command=[PYTHON, "-uc", code],
                health_check=HealthCheck(type="none"),
            )
        )

    def container(self) -> str:
        """Docker's id of the task's container, "" where there is none."""
        try:
            return str(self.api.inspect_container(self.task)["Id"])
        except docker.errors.NotFound:
            return ""

    def agent_log(self) -> str:
        return (self.folder / "agent.log").read_text()

    async def said(self, words: str) -> None:
        """Wait until the agent's own log says so."""
        await self.wait_for(lambda: words in self.agent_log(), f"the agent says {words!r}")

    def running(self) -> list[str]:
        """Tasks that the newest run's last heartbeat names."""
        newest = self.server.newest[1]
        last = [beat for beat in self.server.heartbeats if beat.incarnation == newest][-1:]
        return [report.task_id for beat in last for report in beat.running]


@pytest.fixture
async def machine(docker_node: DockerNode, plain_image: str, tmp_path: Path) -> AsyncIterator[Machine]:
    make_tiny_model(tmp_path / "models" / "tiny")
    async with FakeServer() as server:
        made = Machine(server, docker_node, tmp_path, docker_node.api)
        yield made
        for agent in made.agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
        sweep(made.api, f"heteroflow.task={made.task}")
