"""The agent's websocket: a credential at the handshake, then "look" and nothing else."""

import asyncio

import pytest
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from django.db import OperationalError

from agent.contract import messages as m
from agent.contract import wire
from apps.agentlink.consumers import AWAY, REPLACED
from apps.agentlink.routing import websocket_urlpatterns
from apps.core import hints
from tests import factories
from tests.apps.streams.sockets import Socket

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("AGENT-01")]


def socket_of(node, secret="node-secret", version=m.CONTRACT_VERSION):
    headers = {"Authorization": f"Bearer {node.public_id}:{secret}", m.CONTRACT_HEADER: str(version)}
    return Socket(URLRouter(websocket_urlpatterns), "/ws/agent", headers)


async def test_a_hint_becomes_look(node):
    socket = socket_of(node)
    assert await socket.open() is True
    await database_sync_to_async(hints.look)(node.public_id)
    message = await socket.receive_output(10)
    assert wire.decode(message["text"].encode(), m.Look) == m.Look()
    await socket.hang_up()


async def test_a_hint_for_another_node_is_not_heard(node):
    other = await database_sync_to_async(factories.make_node)()
    socket = socket_of(node)
    await socket.open()
    await database_sync_to_async(hints.look)(other.public_id)
    assert await socket.receive_nothing(timeout=0.2)
    await socket.hang_up()


async def test_a_handshake_without_the_credential_is_refused(node):
    assert await socket_of(node, secret="wrong").open() == 4401
    assert await Socket(URLRouter(websocket_urlpatterns), "/ws/agent").open() == 4426
    bare = {m.CONTRACT_HEADER: "1"}
    assert await Socket(URLRouter(websocket_urlpatterns), "/ws/agent", bare).open() == 4401
    assert await socket_of(node, version=99).open() == 4426


async def test_a_database_that_does_not_answer_is_no_wrong_credential(node, monkeypatch):
    def away(*args):
        raise OperationalError("away")

    monkeypatch.setattr("apps.agentlink.credentials.authenticate", away)
    assert await socket_of(node).open() == AWAY


async def test_the_newest_connection_of_a_node_closes_the_one_before(node):
    first, second = socket_of(node), socket_of(node)
    await first.open()
    await second.open()
    assert await first.close_code() == REPLACED
    await database_sync_to_async(hints.look)(node.public_id)
    assert (await second.hear())["type"] == "look"
    await second.hang_up()


async def test_what_an_agent_says_there_is_not_heard(node):
    socket = socket_of(node)
    await socket.open()
    await socket.send_input({"type": "websocket.receive", "text": '{"type": "heartbeat"}'})
    await socket.send_input({"type": "websocket.receive", "bytes": b"\xff" * 100})
    assert await asyncio.wait_for(socket.receive_nothing(), 5)
    await socket.hang_up()
