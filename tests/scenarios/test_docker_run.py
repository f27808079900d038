"""`RUNTIME=docker make run`: the embedded profile with its engine in a container."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.ops import docker_run
from apps.ops.preflight import NotReady
from tests.fakes.docker.engines import DockerNode, sweep
from tests.fakes.tiny_model import ANSWER
from tests.stack import Stack, new_stack, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


@pytest.fixture
def stack(docker_node: DockerNode, tmp_path: Path) -> Iterator[Stack]:
    made = new_stack(tmp_path, RUNTIME="docker", DOCKER_HOST=docker_node.socket)
    yield made
    made.end()
    sweep(docker_node.api, "heteroflow.task")


@pytest.mark.req("OPS-01", "AGENT-03", "AGENT-09")
def test_call_is_answered_from_a_container_that_outlives_its_agent(
    stack: Stack, docker_node: DockerNode
) -> None:
    stack.start()
    assert stack.ask() == ANSWER
    (row,) = docker_node.api.containers(filters={"label": "heteroflow.task"})
    assert row["Names"][0].startswith("/task-")

    before = stack.printed().count("incarnation")
    stack.kill(stack.agent())
    assert stack.ask() == ANSWER
    until(lambda: stack.printed().count("incarnation") > before, "the next agent runs")
    assert stack.ask() == ANSWER
    until(lambda: "it goes on" in stack.printed(), "the container was taken over")
    (again,) = docker_node.api.containers(filters={"label": "heteroflow.task"})
    assert again["Id"] == row["Id"]

    assert stack.stop() == 0
    assert docker_node.api.containers(all=True, filters={"label": "heteroflow.task"}) == []


@pytest.mark.req("OPS-01")
def test_what_is_missing_is_named_with_the_way_out(docker_node: DockerNode) -> None:
    docker_run.require_docker(docker_node.socket, docker_run.engine_image())
    with pytest.raises(NotReady, match=r"image me/none:1, .*make engine-image"):
        docker_run.require_docker(docker_node.socket, "me/none:1")
    with pytest.raises(NotReady, match="does not answer at unix:///nowhere"):
        docker_run.require_docker("unix:///nowhere.sock", "me/none:1")
    with pytest.raises(NotReady, match="is not offered"):
        docker_run.require_docker("tcp://10.0.0.1:2375", "me/none:1")
