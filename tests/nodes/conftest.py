"""The fleet that all tests of several nodes share, and that each of them leaves as it was."""

from collections.abc import Iterator

import pytest

from tests.nodes.fleet import Fleet, running_fleet


@pytest.fixture(scope="session")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """Three nodes that are up and hold nothing, before and after."""
    yield whole_fleet
    whole_fleet.settle()
