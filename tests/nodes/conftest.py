"""The fleet that all tests of several nodes share, and that each of them leaves as it was."""

from collections.abc import Iterator

import pytest

from tests.fakes.docker.engines import DockerNode, docker_nodes
from tests.fakes.vllm.image import build_fake_vllm
from tests.nodes.fleet import CARDS, Fleet, running_fleet
from tests.nodes.servers import SERVERS


def pytest_itemcollected(item: pytest.Item) -> None:
    """A worker each for the two fleets, and none that starts both."""
    of = getattr(getattr(item, "callspec", None), "params", {}).get("whole_fleet", "embedded")
    item.add_marker(pytest.mark.xdist_group(of))


@pytest.fixture(scope="session")
def engines() -> Iterator[list[DockerNode]]:
    """A Docker engine in a network namespace for each machine."""
    with docker_nodes(len(CARDS), "netns") as started:
        yield started


@pytest.fixture(scope="session")
def vllm(engines: list[DockerNode]) -> str:
    """The image of the tests' vllm, which lies on every machine; also for whatever runs Python."""
    for engine in engines:
        tag = build_fake_vllm(engine.socket)
    return tag


@pytest.fixture(scope="session", params=SERVERS)
def whole_fleet(
    request: pytest.FixtureRequest, engines: list[DockerNode], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    host = engines[0].address.rpartition(".")[0] + ".1"  # where the machines see this one
    with (
        SERVERS[request.param](folder, host) as (stack, proxy),
        running_fleet(folder, stack, proxy, engines) as made,
    ):
        yield made


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """Three nodes that are up and hold nothing, before and after."""
    yield whole_fleet
    whole_fleet.settle()
