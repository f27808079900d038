"""The stack with Docker that tests of this folder share; each leaves it running."""

from collections.abc import Iterator

import pytest

from tests.breaks.arming import Breaks
from tests.fakes.docker.engines import DockerNode, sweep
from tests.stack import Stack, new_stack

LOG_ROOM_MB = 4


@pytest.fixture(scope="package")
def breaks(tmp_path_factory: pytest.TempPathFactory) -> Breaks:
    return Breaks(tmp_path_factory.mktemp("breaks"))


@pytest.fixture(scope="package")
def docker_stack(
    docker_node: DockerNode, breaks: Breaks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Its processes can be killed at named points, and its agent keeps little of logs."""
    made = new_stack(
        tmp_path_factory.mktemp("docker-stack"),
        RUNTIME="docker",
        DOCKER_HOST=docker_node.socket,
        HETEROFLOW_AGENT_LOG_ROUND_S="0.2",
        HETEROFLOW_AGENT_LOG_COPY_MB=str(LOG_ROOM_MB),
        RECONCILE_GRACE_S="60",  # a server that is started again late is no container that vanished
        **breaks.environment,
    )
    try:
        made.start()
        yield made
    finally:
        made.end()
        sweep(docker_node.api, "heteroflow.task")
