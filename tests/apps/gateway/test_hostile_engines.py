"""What an engine can do to others by what it says or doesn't say: the pools, the answers, the counts."""

import asyncio
import json

import aiohttp
import pytest

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.connection import Unreachable
from apps.gateway.plane.io.pool import Pool
from apps.usage.record import Ending
from tests.fakes.gateway import BODY, RunningGateway, make_replica
from tests.fakes.mock_engine import MockEngine

CHAT = "/v1/chat/completions"


@pytest.mark.req("GW-05")
@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("status", [420, 499])
async def test_a_status_without_a_name_goes_on_as_it_is(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, status: int
) -> None:
    engine.plan.status, engine.plan.body = status, b'{"error": {"message": "be calm"}}'
    async with http.post(gateway.url + CHAT, json=BODY) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"] == "be calm"
    engine.plan.status, engine.plan.body = 200, b'{"error": {"message": "be calm", "code": %d}}' % status
    async with http.post(gateway.url + CHAT, json=BODY) as response:
        assert response.status == status


@pytest.mark.req("GW-12")
@pytest.mark.usefixtures("each_shell")
async def test_a_prompt_with_a_number_beyond_all_sizes_leaves_its_record(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.usage = None
    body = json.dumps(BODY).replace('"hello there"', "1e999")
    async with http.post(gateway.url + CHAT, data=body) as response:
        assert response.status == 200
    (record,) = gateway.records()
    assert (record.ending, record.estimated) == (Ending.COMPLETED, True)
    assert record.prompt_tokens > 5


@pytest.mark.req("GW-15")
async def test_a_pool_is_not_given_up_while_its_first_connection_is_made() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    pool = Pool(make_replica(server.sockets[0].getsockname()[1]), GatewayConfig())
    making = asyncio.create_task(pool.connect())
    await asyncio.sleep(0)
    assert pool.prune(), "who is forgotten now keeps its connection for ever"
    connection = await making
    assert pool.prune()
    connection.close()
    assert not pool.prune()
    server.close()


@pytest.mark.req("GW-15")
@pytest.mark.parametrize("host", ["a..b", "a" * 70, "\ud800"])
async def test_a_name_that_nobody_can_be_asked_for_is_not_reached(host: str) -> None:
    pool = Pool(make_replica(1, host=host), GatewayConfig())
    with pytest.raises(Unreachable) as failure:
        await pool.connect()
    assert failure.value.refused and not pool.prune()
