"""kill -9 of the agent and of the server at each step of a start, on real Docker: the service runs once, in
one container, with one port (AGENT-03, AGENT-09, RECOV-06, OPS-06)."""

from typing import Any

import openai
import pytest

from apps.ops.rest import Api
from tests.breaks.arming import Breaks
from tests.breaks.points import POINTS
from tests.fakes.docker.engines import DockerNode
from tests.fakes.tiny_model import ANSWER
from tests.stack import Stack, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

LABEL = "heteroflow.task"
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


@pytest.fixture(scope="module")
def stack(docker_stack: Stack) -> Stack:
    return docker_stack


def answers(stack: Stack, model: str) -> bool:
    ask = stack.openai().chat.completions.create
    try:
        answer = ask(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=16)
    except openai.APIError:
        return False
    return answer.choices[0].message.content == ANSWER


@pytest.fixture(scope="module")
def member(stack: Stack) -> Api:
    """Signed in once: signing in again and again is guessing."""
    return stack.api()


def seen(member: Api, address: str) -> dict[str, Any]:
    """A service as the API shows it, or what it says while its server is away."""
    try:
        return dict(member.call("GET", address))
    except OSError as error:
        return {"status": repr(error)}


@pytest.mark.req("AGENT-03", "AGENT-09", "AGENT-02", "RECOV-06", "SCHED-12", "OPS-06")
@pytest.mark.parametrize("point", POINTS)
def test_a_start_that_is_killed_in_the_middle_ends_running_once(
    stack: Stack, member: Api, docker_node: DockerNode, breaks: Breaks, point: str
) -> None:
    model = str(stack.data_dir / "models" / "tiny.gguf")
    task = {"image": IMAGE, "gpu_required": 0, "model_path": model}
    breaks.at(point)
    made = member.call("POST", "/api/v1/task-groups", {"name": point, "model_name": point, "task": task})
    address = f"/api/v1/task-groups/{made['id']}"
    breaks.await_death(point)
    until(
        lambda: seen(member, address)["status"] == "running",
        lambda: f"{seen(member, address)}\n{stack.printed()[-6000:]}",
        90,
    )
    until(lambda: answers(stack, point), lambda: f"it answers\n{stack.printed()[-6000:]}", 30)

    (now,) = seen(member, address)["tasks"]
    (container,) = docker_node.api.containers(all=True, filters={"label": f"{LABEL}={now['id']}"})
    assert container["State"] == "running"
    assert container["Labels"]["heteroflow.attempt"] == str(now["attempt"])
    of_task = "JOIN workloads_task t ON t.id = x.task_id WHERE t.public_id = ?"
    live = f"SELECT x.attempt FROM workloads_claim x {of_task} AND x.released_at IS NULL"
    assert stack.rows(live, now["id"]) == [(now["attempt"],)]
    ports = "SELECT attempt FROM fleet_port WHERE owner = ?"
    assert stack.rows(ports, now["id"]) == [(now["attempt"],)]
    started = f"SELECT count(*) FROM workloads_event x {of_task} AND x.to_state = 'running'"
    assert stack.rows(started, now["id"]) == [(1,)]
    assert now["rebuilds"] == 0, "the fault was not the service's"

    member.call("DELETE", address)
    label = {"label": f"{LABEL}={now['id']}"}
    until(lambda: not docker_node.api.containers(all=True, filters=label), "its container is gone", 30)
    until(lambda: not stack.rows(ports, now["id"]), "its port is free", 30)
