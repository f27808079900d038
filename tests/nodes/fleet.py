"""A server behind its front proxy and three machines that joined it, for tests of several nodes.

Owns what all of them need: people, the model, the machines, and services that are gone after a test.
What a test knows of the server it asked for over HTTP; rows are read only where a promise is about rows.
"""

import math
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from openai import APIStatusError, OpenAI

from apps.ops.rest import Api, ApiRefusal
from tests.fakes.docker.engines import DockerNode
from tests.fakes.nginx import FrontProxy
from tests.fakes.nvml.cards import FakeCards, build_library
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.vllm.image import order_next
from tests.nodes.machine import Machine
from tests.stack import Stack, until

IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
# One kind a machine, two cards of it: asking for a kind means asking for a machine.
CARDS = {"one": "NVIDIA L20", "two": "NVIDIA A100-SXM4-80GB", "three": "NVIDIA GeForce RTX 4090"}
CAPABILITY = {"one": "8.9", "two": "8.0", "three": "8.9"}
PASSWORD = "a-password-of-the-fleet"


class Person(Api):
    """Signed in anew every few minutes: a fleet outlives an access token."""

    def __init__(self, base_url: str, username: str, password: str) -> None:
        super().__init__(base_url)
        self.username, self.password, self.signed_in_at = username, password, -math.inf

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if time.monotonic() - self.signed_in_at > 300:
            self.signed_in_at = time.monotonic()
            self.sign_in(self.username, self.password)
        return super().call(method, path, body)


class Fleet:
    """Made by `running_fleet`."""

    def __init__(self, stack: Stack, proxy: FrontProxy, machines: list[Machine], model: Path) -> None:
        self.stack = stack
        self.proxy = proxy
        self.machines = {machine.name: machine for machine in machines}
        self.model = model
        self.made: list[tuple[Person, str]] = []
        assert stack.operator_password is not None
        self.operator = Person(stack.base_url, "admin", stack.operator_password)
        self._people: dict[str, Person] = {}
        self.member = self.member_of("lab", "ada")
        self.key = self.member.call("POST", "/api/v1/api-keys", {"name": "fleet"})["key"]

    def member_of(self, slug: str, username: str) -> Person:
        """Somebody of this tenant, which is made if it is not there."""
        if slug not in self._people:
            tenant = self.operator.call("POST", "/api/v1/tenants", {"slug": slug, "name": slug.title()})
            person = {"username": username, "password": PASSWORD, "role": "member"}
            self.operator.call("POST", f"/api/v1/tenants/{tenant['id']}/members", person)
            self._people[slug] = Person(self.stack.base_url, username, PASSWORD)
        return self._people[slug]

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
        """All three serve, take work, and hold nothing; the next engine is as it is without an order."""
        for person, group_id in self.made:
            try:
                person.call("DELETE", f"/api/v1/task-groups/{group_id}")
            except ApiRefusal as refusal:
                assert refusal.status == 404
        self.made.clear()
        order_next(self.model.parent)
        for name, machine in self.machines.items():
            machine.bring_back()
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

    def serve(self, name: str, *, kind: str = "", replicas: int = 1, **changes: Any) -> str:
        """A running service of the tiny model; its group's id. `kind`: on a card of that kind; `changes` are
        the task's."""
        task: dict[str, Any] = {"image": IMAGE, "gpu_required": 0, "model_path": str(self.model)}
        if kind:
            task |= {"gpu_required": 1, "gpu_type": kind}
        task |= changes
        form = {"parallelism": "split", "world_size": replicas} if replicas > 1 else {}
        group_id = self.create(name, task, **form)
        self.await_running(group_id)
        return group_id

    def create(self, name: str, task: dict[str, Any], *, person: Person | None = None, **fields: Any) -> str:
        """A group that somebody asked for, whatever becomes of it; its id."""
        person = person or self.member
        group = person.call("POST", "/api/v1/task-groups", {"name": name, "task": task, **fields})
        self.made.append((person, group["id"]))
        return str(group["id"])

    def await_running(self, group_id: str, limit_s: float = 120) -> None:
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
        return self.stack.rows(f"SELECT number FROM fleet_port WHERE owner = '{task['id']}'")

    # --- calls ---

    def openai(self) -> OpenAI:
        """The official SDK at the front proxy's address, which it knows by its certificate."""
        return OpenAI(
            base_url=f"{self.proxy.url}/v1",
            api_key=self.key,
            http_client=self.http(),
            max_retries=0,
            timeout=30,
        )

    def http(self) -> httpx2.Client:
        """Believes the front proxy's certificate and nothing else."""
        trust = ssl.create_default_context(cafile=str(self.proxy.certificate))
        return httpx2.Client(base_url=self.proxy.url, verify=trust, trust_env=False)

    def ask(self, model: str) -> str:
        with self.openai() as sdk:
            answer = sdk.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
            )
        return answer.choices[0].message.content or ""

    def await_answer(self, model: str, limit_s: float = 60) -> str:
        """Its answer as soon as every gateway process knows the route, which takes a second or two: the
        front proxy asks them in turn."""

        def answers() -> str:
            said = {self._try(model) for _ in range(4)}
            return said.pop() if len(said) == 1 else ""

        return str(until(answers, f"{model} answers", limit_s))

    def ask_code(self, model: str) -> int:
        """The status of one call's answer."""
        try:
            self.ask(model)
        except APIStatusError as refused:
            return refused.status_code
        return 200

    def _try(self, model: str) -> str:
        try:
            return self.ask(model)
        except Exception:
            return ""


@contextmanager
def running_fleet(
    folder: Path, stack: Stack, proxy: FrontProxy, engines: Sequence[DockerNode]
) -> Iterator[Fleet]:
    """Three machines that joined this server and are up; gone afterwards."""
    models = folder / "models"
    model = make_tiny_model(models)
    library = build_library(folder)
    with ExitStack() as held:
        machines = []
        for name, engine in zip(CARDS, engines, strict=True):
            cards = FakeCards(library, folder / f"cards-{name}.txt")
            card = {"name": CARDS[name], "mem": 46068, "cc": CAPABILITY[name]}
            cards.have(*({"uuid": f"GPU-{name}-{number}", **card} for number in (1, 2)))
            machines.append(Machine(engine, folder / name, cards, models))
            held.callback(machines[-1].kill)
        fleet = Fleet(stack, proxy, machines, model)
        # The server's own machine takes no part.
        (local,) = until(lambda: list(fleet.operator.rows("/api/v1/nodes")), "the local node has joined")
        fleet.operator.call("PATCH", f"/api/v1/nodes/{local['id']}", {"cordoned": True})
        for machine in machines:
            fleet.join(machine)
        for machine in machines:
            until(machine.runs, machine.log, 60)
            machine.node_id = machine.identity()["node_id"]
            fleet.set_node(machine.name, name=machine.name)
        fleet.settle()
        yield fleet
        fleet.settle()
