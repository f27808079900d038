"""A mock engine and a gateway in front of it, both on free ports."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.gateway import SECRET, FakeSource, RunningGateway, make_replica, make_route, make_table
from tests.fakes.mock_engine import MockEngine


@pytest.fixture(params=["warm", "asgi"])
def each_shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The contract of the gateway holds whichever shell it is served by, and with a task for each call or
    without: a call on a connection that is kept has none until something is out of the ordinary."""
    monkeypatch.setattr(RunningGateway, "shell", request.param)
    return str(request.param)


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine() as running:
        yield running


@pytest.fixture
def source(engine: MockEngine) -> FakeSource:
    """One tenant with one model on one replica."""
    return FakeSource(make_table(make_route(make_replica(engine))))


@pytest.fixture
async def gateway(source: FakeSource, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with RunningGateway(
        source, tmp_path / "usage", shutdown_timeout_s=1.0, tail_timeout_s=0.3, version_poll_s=0.05
    ) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that sends the tenant's key."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as session:
        yield session
