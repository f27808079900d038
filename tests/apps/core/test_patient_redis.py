"""The production profile's channel layer while Redis is away: nobody waits, and it comes back by itself."""

import asyncio
import logging
import socket

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeout

from heteroflow.redis_layer import OneLineFaults, PatientRedisLayer, PatientShard

pytestmark = pytest.mark.req("OPS-06")


def layer_at(port: int) -> PatientRedisLayer:
    host = {
        "address": f"redis://127.0.0.1:{port}/0",
        "socket_timeout": 0.2,
        "socket_connect_timeout": 0.2,
        "retry": Retry(NoBackoff(), 0),
    }
    return PatientRedisLayer(hosts=[host])


async def test_a_websocket_is_served_while_redis_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        layer = layer_at(silent.getsockname()[1])
        began = asyncio.get_running_loop().time()
        channel = await layer.new_channel()
        await layer.group_add("node.x", channel)
        await layer.group_discard("node.x", channel)
        assert asyncio.get_running_loop().time() - began < 2.0
        with pytest.raises(Exception, match=r"[Tt]imeout"):
            await layer.group_send("node.x", {"type": "look"})  # a lost hint is told to who counts them
        await layer.flush()


async def test_it_goes_on_asking_for_what_it_could_not_subscribe_to() -> None:
    asked = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    layer = layer_at(server.sockets[0].getsockname()[1])
    await layer.new_channel()
    first = asked
    async with asyncio.timeout(10):
        while asked <= first:
            await asyncio.sleep(0.05)
    await layer.flush()
    server.close()


async def test_every_connection_is_a_patient_one() -> None:
    layer = layer_at(1)
    assert [type(shard) for shard in layer._get_layer()._shards] == [PatientShard]


@pytest.mark.parametrize("part", ["celery.worker.consumer.consumer", "celery.worker.request", "celery.beat"])
def test_a_worker_that_redis_does_not_answer_says_so_in_one_line(part: str) -> None:
    """A message that can not be acknowledged, for one, which Celery tells with all frames."""
    fault = RedisTimeout("Timeout reading from socket")
    told = (type(fault), fault, None)
    record = logging.LogRecord(part, logging.CRITICAL, "f", 1, "Couldn't ack %r\nand more", ("7",), told)
    assert OneLineFaults().filter(record)
    text = logging.Formatter("%(levelname)s %(message)s").format(record)
    assert text == "WARNING Couldn't ack '7' (TimeoutError)"
