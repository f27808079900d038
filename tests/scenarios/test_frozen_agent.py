"""An agent of the contract before keeps working with today's server on both profiles (OPS-11): the embedded
chain, run by the frozen copy as a second node while the first one takes no new work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.ops.rest import Api
from tests.fakes.tiny_model import ANSWER
from tests.production_stack import running_production
from tests.scenarios.test_chain import IMAGE
from tests.stack import ROOT, Stack, free_port, running_stack, until

pytestmark = [pytest.mark.slow, pytest.mark.req("OPS-11")]
FROZEN = ROOT / "tests" / "frozen" / "agent_v1"


@pytest.fixture(params=["embedded", "production"])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with running_stack(tmp_path) if request.param == "embedded" else running_production() as started:
        yield started


def start_frozen(stack: Stack, operator: Api) -> subprocess.Popen[bytes]:
    """The frozen agent as a node of this server. Its data lies in the stack's, which ends what is left."""
    home = stack.data_dir / "frozen"
    (home / "state").mkdir(parents=True, mode=0o700)
    token = operator.call("POST", "/api/v1/join-tokens", {})["token"]
    first = free_port()
    settings = {
        "SERVER_URL": stack.base_url,
        "SERVER_SHA256": stack.fingerprint,
        "STATE_DIR": str(home / "state"),
        "JOIN_TOKEN": token,
        "RUNTIME": "process",
        "ALLOWED_VOLUME_PREFIXES": str(stack.data_dir / "models"),
        "RELATIVE_MODEL_ROOT": str(stack.data_dir / "models"),
        "PORT_RANGE": f"{first}-{min(first + 50, 65535)}",
        "HEARTBEAT_S": "0.5",
        "LOADING_PROBE_S": "0.1",
    }
    named = {f"HETEROFLOW_AGENT_{name}": value for name, value in settings.items()}
    with (home / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "agent"],
            cwd=FROZEN,  # whose `agent` is the one that Python finds first
            env={"PATH": os.environ["PATH"], "DATA_DIR": str(stack.data_dir), **named},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def test_the_frozen_agent_serves_a_call(stack: Stack) -> None:
    operator, member = stack.api("admin"), stack.api()
    (first,) = operator.rows("/api/v1/nodes")
    operator.call("PATCH", f"/api/v1/nodes/{first['id']}", {"cordoned": True})
    agent = start_frozen(stack, operator)
    try:
        second = until(lambda: other_node(operator, first["id"]), "the frozen agent is a node and online")
        model = str(stack.data_dir / "models" / "tiny.gguf")
        task = {"image": IMAGE, "gpu_required": 0, "model_path": model}
        group = member.call("POST", "/api/v1/task-groups", {"name": "old", "task": task})
        address = f"/api/v1/task-groups/{group['id']}"
        until(lambda: member.call("GET", address)["status"] == "running", lambda: log_of(stack))
        placed = stack.rows(
            "SELECT n.public_id FROM workloads_claim c JOIN workloads_task t ON t.id = c.task_id"
            " JOIN workloads_taskgroup g ON g.id = t.group_id JOIN fleet_node n ON n.id = c.node_id"
            " WHERE g.public_id = ? AND c.released_at IS NULL",
            group["id"],
        )
        assert placed == [(second["id"],)]
        stack.model = "old"
        assert until(lambda: answer(stack), "the call is answered", 15) == ANSWER
        member.call("POST", f"{address}/stop")
        until(lambda: member.call("GET", address)["status"] == "stopped", lambda: log_of(stack))
        member.call("DELETE", address)
    finally:
        agent.terminate()
        assert agent.wait(timeout=20) == 0
    assert "Traceback" not in log_of(stack)


def other_node(operator: Api, known: str) -> dict[str, Any] | None:
    found = [node for node in operator.rows("/api/v1/nodes") if node["id"] != known and node["online"]]
    return found[0] if found else None


def answer(stack: Stack) -> str | None:
    try:
        return stack.ask()
    except Exception:  # its route is published within a second
        return None


def log_of(stack: Stack) -> str:
    return (stack.data_dir / "frozen" / "agent.log").read_text(errors="replace")[-3000:]
