"""A server behind its front proxy and three machines that joined it, for tests of several nodes.

Owns what all of them need: people, the model, the machines, and services that are gone after a test.
What a test knows of the server it asked for over HTTP; rows are read only where a promise is about rows.
"""

import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from openai import OpenAI

from apps.ops.rest import Api, ApiRefusal
from tests.fakes.docker.engines import docker_nodes
from tests.fakes.nginx import FrontProxy, front_proxy
from tests.fakes.nvml.cards import FakeCards, build_library
from tests.fakes.tiny_model import make_tiny_model
from tests.nodes.machine import Machine
from tests.stack import Stack, free_port, new_stack, until

IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
# One kind a machine, two cards of it: asking for a kind means asking for a machine.
CARDS = {"one": "NVIDIA L20", "two": "NVIDIA A100-SXM4-80GB", "three": "NVIDIA GeForce RTX 4090"}
CAPABILITY = {"one": "8.9", "two": "8.0", "three": "8.9"}
SILENT_S = 10.0
PASSWORD = "a-password-of-the-fleet"


class BareStack(Stack):
    """The embedded server without its demo."""

    def _is_settled(self) -> bool:
        assert self.process is not None
        text = self.printed()
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{text[-3000:]}"
        return "(shown this once)" in text and Api(self.base_url, timeout_s=2).answers("/readyz")


class Fleet:
    """Made by `running_fleet`."""

    def __init__(self, stack: Stack, proxy: FrontProxy, machines: list[Machine], model: Path) -> None:
        self.stack = stack
        self.proxy = proxy
        self.machines = {machine.name: machine for machine in machines}
        self.model = model
        self.made: list[str] = []
        assert stack.operator_password is not None
        self.operator = Api(stack.base_url)
        self.operator.sign_in("admin", stack.operator_password)
        tenant = self.operator.call("POST", "/api/v1/tenants", {"slug": "lab", "name": "Lab"})
        members = f"/api/v1/tenants/{tenant['id']}/members"
        person = {"username": "ada", "password": PASSWORD, "role": "member"}
        self.operator.call("POST", members, person)
        self.member = Api(stack.base_url)
        self.member.sign_in("ada", PASSWORD)
        self.key = self.member.call("POST", "/api/v1/api-keys", {"name": "fleet"})["key"]

    # --- nodes ---

    def node(self, name: str) -> dict[str, Any]:
        """A node as the operator sees it."""
        return dict(self.operator.call("GET", f"/api/v1/nodes/{self.machines[name].node_id}"))

    def set_node(self, name: str, /, **changes: Any) -> None:
        self.operator.call("PATCH", f"/api/v1/nodes/{self.machines[name].node_id}", changes)

    def join(self, machine: Machine) -> None:
        """What an operator does with a new machine: a line from the server, pasted there."""
        machine.command = self.operator.call("POST", "/api/v1/join-tokens", {})["command"]
        machine.start()

    def is_up(self, name: str) -> bool:
        node = self.node(name)
        return bool(node["online"] and (node["door"] or {}).get("state") == "open")

    def settle(self) -> None:
        """All three serve, take work, and hold nothing."""
        for group_id in self.made:
            try:
                self.member.call("DELETE", f"/api/v1/task-groups/{group_id}")
            except ApiRefusal as refusal:
                assert refusal.status == 404
        self.made.clear()
        for name, machine in self.machines.items():
            machine.mend()
            self.set_node(name, cordoned=False)
        for name, machine in self.machines.items():
            until(lambda name=name: self.is_up(name), lambda name=name: self.told(name), 60)
            until(lambda machine=machine: not machine.containers(), lambda name=name: self.told(name), 60)

    @contextmanager
    def only(self, *names: str) -> Iterator[None]:
        """New work goes to these only."""
        others = [name for name in self.machines if name not in names]
        for name in others:
            self.set_node(name, cordoned=True)
        yield
        for name in others:
            self.set_node(name, cordoned=False)

    def told(self, name: str) -> str:
        return f"{self.node(name)}\n{self.machines[name].log()[-2500:]}\n{self.stack.printed()[-2500:]}"

    # --- services ---

    def serve(self, name: str, *, kind: str = "", replicas: int = 1) -> str:
        """A running service of the tiny model; its group's id. `kind`: on a card of that kind."""
        task: dict[str, Any] = {"image": IMAGE, "gpu_required": 0, "model_path": str(self.model)}
        if kind:
            task |= {"gpu_required": 1, "gpu_type": kind}
        form = {"parallelism": "split", "world_size": replicas} if replicas > 1 else {}
        group = self.member.call("POST", "/api/v1/task-groups", {"name": name, "task": task, **form})
        self.made.append(group["id"])
        self.await_running(group["id"])
        return str(group["id"])

    def await_running(self, group_id: str, limit_s: float = 60) -> None:
        def all_run() -> bool:
            return all(task["status"] == "running" for task in self.tasks(group_id))

        until(all_run, lambda: f"{self.tasks(group_id)} run\n{self.stack.printed()[-3000:]}", limit_s)

    def tasks(self, group_id: str) -> list[dict[str, Any]]:
        return list(self.member.call("GET", f"/api/v1/task-groups/{group_id}")["tasks"])

    def task(self, group_id: str) -> dict[str, Any]:
        (task,) = self.tasks(group_id)
        return dict(task)

    def port_of(self, task: dict[str, Any]) -> int:
        """The host port that the task's present attempt holds."""
        ((number,),) = self.ports_of(task)
        return int(number)

    def ports_of(self, task: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self.stack.rows("SELECT number FROM fleet_port WHERE owner = ?", task["id"])

    # --- calls ---

    def openai(self) -> OpenAI:
        """The official SDK at the front proxy's address, which it knows by its certificate."""
        trust = ssl.create_default_context(cafile=str(self.proxy.certificate))
        client = httpx2.Client(verify=trust, trust_env=False)
        return OpenAI(
            base_url=f"{self.proxy.url}/v1", api_key=self.key, http_client=client, max_retries=0, timeout=30
        )

    def ask(self, model: str) -> str:
        with self.openai() as sdk:
            answer = sdk.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
            )
        return answer.choices[0].message.content or ""

    def await_answer(self, model: str, limit_s: float = 15) -> str:
        """Its first answer: a new route is published within a second or two."""
        return str(until(lambda: self._try(model), f"{model} answers", limit_s))

    def _try(self, model: str) -> str:
        try:
            return self.ask(model)
        except Exception:
            return ""


Build = Callable[[Path, str, int, FrontProxy], Stack]


@contextmanager
def running_fleet(folder: Path) -> Iterator[Fleet]:
    """Everything started and all nodes up; all of it gone afterwards."""
    models = folder / "models"
    model = make_tiny_model(models)
    library = build_library(folder)
    with ExitStack() as held:
        engines = held.enter_context(docker_nodes(len(CARDS), "netns"))
        host = engines[0].address.rpartition(".")[0] + ".1"  # where the machines see the server
        port, inner = free_port(), free_port()
        proxy = held.enter_context(front_proxy(folder, host=host, port=port, server_port=inner))
        stack = bare_stack(folder / "server", proxy, host, inner)
        held.callback(stack.end)
        stack.start([sys.executable, "manage.py", "up", "--no-demo"])
        machines = []
        for name, engine in zip(CARDS, engines, strict=True):
            cards = FakeCards(library, folder / f"cards-{name}.txt")
            cards.have(
                *(
                    {"uuid": f"GPU-{name}-{i}", "name": CARDS[name], "mem": 46068, "cc": CAPABILITY[name]}
                    for i in (1, 2)
                )
            )
            machines.append(Machine(engine, folder / name, cards, models))
            held.callback(machines[-1].kill)
        fleet = Fleet(stack, proxy, machines, model)
        (local,) = fleet.operator.rows("/api/v1/nodes")  # the server's own machine takes no part
        fleet.operator.call("PATCH", f"/api/v1/nodes/{local['id']}", {"cordoned": True})
        for machine in machines:
            fleet.join(machine)
        for machine in machines:
            until(lambda machine=machine: machine.runs(), machine.log, 60)
            machine.node_id = machine.identity()["node_id"]
            fleet.set_node(machine.name, name=machine.name)
        fleet.settle()
        yield fleet


def bare_stack(folder: Path, proxy: FrontProxy, host: str, port: int) -> Stack:
    """The embedded server as it is set up behind a proxy."""
    made = new_stack(
        folder,
        PORT=str(port),
        PUBLIC_URL=proxy.url,
        SERVER_CERTIFICATE_SHA256=proxy.fingerprint,
        ALLOWED_HOSTS=f"127.0.0.1,{host}",
        TRUSTED_PROXIES="127.0.0.1",
        NODE_SILENT_S=str(SILENT_S),
        DOOR_CHECK_PERIOD_S="1",
    )
    return BareStack(made.data_dir, port, made.model_file, made.environment)
