"""`look` reaches a waiting receiver in another thread's event loop."""

import asyncio
import threading

import pytest
from channels.layers import get_channel_layer

from apps.core import hints


@pytest.mark.django_db(transaction=True)
def test_a_look_reaches_a_receiver_of_another_loop():
    ready, got = threading.Event(), []

    async def receive() -> None:
        layer = get_channel_layer()
        assert layer is not None
        channel = await layer.new_channel("test")
        await layer.group_add("node.node-a", channel)
        ready.set()
        got.append(await asyncio.wait_for(layer.receive(channel), 20))

    receiver = threading.Thread(target=lambda: asyncio.run(receive()))
    receiver.start()
    assert ready.wait(20)
    hints.look("node-a")
    receiver.join(30)

    assert got == [{"type": "look"}]
