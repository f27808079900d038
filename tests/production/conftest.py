"""One production stack for all tests of this folder; each leaves it running."""

from collections.abc import Iterator

import pytest

from tests.production_stack import ProductionStack, running_production
from tests.stack import METRICS_TOKEN, assert_clean_log


@pytest.fixture(scope="package")
def production() -> Iterator[ProductionStack]:
    with running_production(METRICS_TOKEN=METRICS_TOKEN) as stack:
        yield stack
        assert_clean_log(stack)


@pytest.fixture(scope="package")
def running_server(production: ProductionStack) -> ProductionStack:
    """In scenarios that run on either profile."""
    return production


def pytest_itemcollected(item: pytest.Item) -> None:
    """They stay in one worker, so that it is started once."""
    if {"production", "running_server"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.xdist_group("production"))
        item.add_marker(pytest.mark.slow)
