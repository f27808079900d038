"""Every line of a container reaches the server once, or is counted in a gap that the log itself tells, over
kills of agent and server under a flood (AGENT-10, AGENT-14)."""

import re
from pathlib import Path

import pytest

from apps.ops.rest import Api
from tests.fakes import flood
from tests.fakes.docker.engines import DockerNode
from tests.faults.conftest import LOG_ROOM_MB
from tests.production_stack import pause
from tests.stack import Stack, until
from tools.engine_image import build

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

IMAGE = "example/flood:1"
CHANGES = ['ENTRYPOINT ["/usr/local/bin/python3", "-I", "/app/server.py"]', "WORKDIR /"]
GAP = re.compile(r"\[heteroflow: (\d+) bytes of this log are missing here \((at most )?(\d+) lines\): ")


@pytest.fixture
def stack(docker_node: DockerNode, docker_stack: Stack) -> Stack:
    """Its agent's room for a log holds three bursts and many minutes of steady lines, and no deluge."""
    assert 3.5 * flood.BURST * flood.LINE < LOG_ROOM_MB * 1024 * 1024 < flood.DELUGE * flood.LINE
    build(docker_node.socket, IMAGE, app=Path(flood.__file__), package=None, changes=CHANGES)
    return docker_stack


def whole_log(api: Api, task_id: str) -> list[str]:
    """All lines that the server has, the piece that begins each answer following the one before."""
    text, place = "", 0
    while True:
        piece = api.call("GET", f"/api/v1/tasks/{task_id}/logs?attempt=1&from={place}")
        if not piece["text"]:
            return text.splitlines()
        # a gap lies between two pieces, and its record ends where the first of them begins
        text, place = text + piece["text"], piece["end"]


def judged(lines: list[str]) -> tuple[int, list[int]]:
    """How many lines there were, gaps included, and how many each gap holds. Fails unless each number is
    there once and in order, or is counted in a gap."""
    following, gaps, allowed, exact = 0, [], None, True
    for text in lines:
        told = GAP.match(text)
        if told is not None:
            # One follows another where the room went on shrinking before a line came through.
            allowed = (allowed or 0) + int(told[3])
            exact = exact and not told[2]
            continue
        number = int(text.split()[1])
        assert text == flood.line(number)
        missing = number - following
        if allowed is None:
            assert missing == 0, f"line {following} is followed by {number}"
        else:
            assert 0 <= missing <= allowed, (following, number, allowed)
            assert missing == allowed or not exact, (following, number, allowed)
            gaps.append(missing)
        following, allowed, exact = number + 1, None, True
    assert allowed is None
    return following, gaps


@pytest.mark.req("AGENT-10", "AGENT-14", "RECOV-06")
def test_lines_are_counted_over_kills_of_agent_and_server(stack: Stack, docker_node: DockerNode) -> None:
    api = stack.api()
    task = {"image": IMAGE, "gpu_required": 0, "ports": []}
    made = api.call(
        "POST",
        "/api/v1/task-groups",
        {"name": "flood", "task_type": "container", "enable_api": False, "task": task},
    )
    (row,) = made["tasks"]
    stored = "SELECT max(c.end) FROM streams_logchunk c JOIN workloads_task t ON t.id = c.task_id"

    def carried() -> int:
        return int(stack.rows(f"{stored} WHERE t.public_id = ?", row["id"])[0][0] or 0)

    def comes(lines: int, *, since: int | None = None) -> None:
        before = carried() if since is None else since
        until(lambda: carried() > before + lines * flood.LINE, lambda: stack.printed()[-3000:], 90)

    until(lambda: carried() > 0, lambda: stack.printed()[-3000:])
    (container,) = docker_node.api.containers(filters={"label": f"heteroflow.task={row['id']}"})
    for killed in ([stack.agent], [stack.server], [stack.agent, stack.server]):
        before = carried()
        docker_node.api.kill(container["Id"], "SIGUSR1")
        comes(1000, since=before)
        for process in [of() for of in killed]:
            stack.kill(process)
        comes(flood.BURST, since=before)
    count, gaps = judged(whole_log(stack.api(), row["id"])[:-1])
    assert (gaps, count > 3 * flood.BURST) == ([], True)

    server = stack.server()
    assert server is not None
    pause(server)
    docker_node.api.kill(container["Id"], "SIGHUP")
    until(lambda: "is above its room" in stack.printed(), "a deluge without a server outgrows the room", 90)
    server.resume()
    comes(1000)
    docker_node.api.kill(container["Id"], "SIGUSR2")

    def the_end() -> list[str]:
        tail = api.call("GET", f"/api/v1/tasks/{row['id']}/logs?tail_lines=1")["text"].split()
        return tail if tail[:3] == flood.LAST.split() else []

    *_, written = until(the_end, lambda: stack.printed()[-3000:], 90)
    count, gaps = judged(whole_log(api, row["id"])[:-1])
    assert count == int(written)
    assert sum(gaps) > 0
    (now,) = api.call("GET", f"/api/v1/task-groups/{made['id']}")["tasks"]
    assert (now["status"], now["attempt"]) == ("running", 1)
    api.call("DELETE", f"/api/v1/task-groups/{made['id']}")
