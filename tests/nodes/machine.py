"""One machine of a small fleet: a Docker engine in a network namespace, made-up cards, and an agent.

Owns the agent's process and the machine's link to the rest. The agent is started by the line that the
server prints for it; everything else that it is told is what an operator would put beside that line.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import psutil

from tests.fakes.docker.engines import DockerNode
from tests.fakes.nvml.cards import FakeCards
from tests.stack import ROOT

PYTHON = "/usr/local/bin/python3"  # inside the engine's image
SHORT = {
    "RUNTIME": "docker",
    "DOCKER_POLL_S": "0.1",
    "PULL_POLICY": "never",
    "MEMORY_LIMIT_MB": "256",
    "DISK_FLOOR_MB": "0",
    "PASS_CARDS": "false",  # the cards are made up: Docker has nothing to pass on
    "HEARTBEAT_S": "0.5",
    "REQUEST_TIMEOUT_S": "3",
    "LOADING_PROBE_S": "0.1",
    "CLAIM_RETRY_S": "2",
    "ORPHAN_GRACE_S": "1",
}


class Machine:
    """`name` is the node's name at the server."""

    def __init__(self, engine: DockerNode, folder: Path, cards: FakeCards, models: Path) -> None:
        self.engine = engine
        self.api: docker.APIClient = engine.api
        self.cards = cards
        self.state = folder / "state"
        self.name = folder.name
        self.node_id = ""
        self.command = ""  # the join line
        self._log = folder / "agent.log"
        self._models = models
        _, _, space, link, _ = (engine.folder / "names").read_text().split()
        self.namespace, self._link = f"/var/run/netns/{space}", link
        self._agent: subprocess.Popen[bytes] | None = None
        self.state.mkdir(parents=True, mode=0o700)

    # --- the agent ---

    def start(self) -> None:
        """Start the agent by its line, in this machine's network."""
        told = {
            **SHORT,
            "STATE_DIR": str(self.state),
            "DOCKER_HOST": self.engine.socket,
            "ALLOWED_VOLUME_PREFIXES": str(self._models),
        }
        environment = {
            **{f"HETEROFLOW_AGENT_{name}": value for name, value in told.items()},
            **self.cards.environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        inside = ["nsenter", f"--net={self.namespace}", "bash", "-c", f"exec env {self.command}"]
        with self._log.open("ab") as log:
            self._agent = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *inside],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def bring_back(self) -> None:
        """Whatever a test that failed has left: Docker, the agent and the link are there again."""
        self.mend()
        if not psutil.pid_exists(self.engine.pid):
            self.engine.restart()
        if self._agent is None or self._agent.poll() is not None:
            self.start()

    def kill(self) -> None:
        """kill -9."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait(10)

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def runs(self) -> list[str]:
        """Incarnations of the agent, the newest last."""
        return re.findall(r"incarnation (\S+)", self.log())

    def identity(self) -> dict[str, str]:
        """Node id and secret, as they lie on the machine."""
        return dict(json.loads((self.state / "identity.json").read_text()))

    # --- the network ---

    def cut(self) -> None:
        """Pull the plug: nothing comes or goes, nobody is told."""
        subprocess.run(["ip", "link", "set", self._link, "down"], check=True)

    def mend(self) -> None:
        subprocess.run(["ip", "link", "set", self._link, "up"], check=True)

    # --- its containers ---

    def containers(self, task_id: str = "") -> list[str]:
        """Docker's ids of running or ended containers, of one task or of all."""
        label = "heteroflow.task" + (f"={task_id}" if task_id else "")
        return [row["Id"] for row in self.api.containers(all=True, filters={"label": label})]

    def address_of(self, task_id: str) -> str:
        """The container's address in its own network."""
        (network,) = self.api.inspect_container(task_id)["NetworkSettings"]["Networks"].values()
        return str(network["IPAddress"])

    def run_inside(self, task_id: str, code: str) -> Any:
        """Run Python in the task's container, as whoever has broken into it would; what it printed, as
        JSON."""
        made = self.api.exec_create(task_id, [PYTHON, "-c", code])
        return json.loads(self.api.exec_start(made["Id"]))

    def run_on_host_network(self, image: str, code: str) -> Any:
        """Run Python in a container that shares the machine's network; what it printed, as JSON."""
        made = self.api.create_container(
            image,
            entrypoint=[PYTHON],
            command=["-c", code],
            host_config=self.api.create_host_config(network_mode="host"),
        )
        try:
            self.api.start(made["Id"])
            assert self.api.wait(made["Id"], timeout=60)["StatusCode"] == 0
            return json.loads(self.api.logs(made["Id"]))
        finally:
            self.api.remove_container(made["Id"], force=True)
