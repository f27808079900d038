"""One production stack for all tests of this folder; each leaves it running."""

from collections.abc import Iterator

import pytest

from tests.production_stack import ProductionStack, running_production

METRICS_TOKEN = "scrape-the-production-stack"


@pytest.fixture(scope="package")
def production() -> Iterator[ProductionStack]:
    with running_production(METRICS_TOKEN=METRICS_TOKEN) as stack:
        yield stack


def pytest_itemcollected(item: pytest.Item) -> None:
    """They stay in one worker, so that it is started once."""
    if "production" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("production"))
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.timeout(240))
