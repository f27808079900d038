"""The in-memory channel layer: a message from another thread wakes an idle loop at once."""

import asyncio
import threading
import time

import pytest
from channels.exceptions import ChannelFull

from heteroflow.layers import LoopAwareInMemoryLayer


@pytest.fixture
def layer():
    return LoopAwareInMemoryLayer(capacity=3)


def send_from_a_thread(send):
    """Run one coroutine in a loop of its own, as the thread that sends hints does."""
    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    return thread


async def test_a_message_from_another_thread_reaches_an_idle_loop_fast(layer):
    channel = await layer.new_channel()
    await layer.group_add("log.task-1", channel)
    waiting = asyncio.create_task(layer.receive(channel))
    await asyncio.sleep(0)  # it waits now, and nothing else happens in this loop

    started = time.monotonic()
    thread = send_from_a_thread(lambda: layer.group_send("log.task-1", {"type": "log.more", "end": 7}))
    message = await asyncio.wait_for(waiting, 60)  # when the loop would wake by itself

    assert message == {"type": "log.more", "end": 7}
    assert time.monotonic() - started < 30
    thread.join()


async def test_a_message_that_comes_before_anybody_waits_is_kept(layer):
    channel = await layer.new_channel()
    send_from_a_thread(lambda: layer.send(channel, {"n": 1})).join()
    assert await asyncio.wait_for(layer.receive(channel), 5) == {"n": 1}


async def test_all_messages_of_many_threads_arrive():
    layer = LoopAwareInMemoryLayer(capacity=1000)
    channel = await layer.new_channel()
    await layer.group_add("g", channel)

    async def send_some(thread_number):
        for n in range(50):
            await layer.group_send("g", {"from": thread_number, "n": n})

    threads = [send_from_a_thread(lambda n=n: send_some(n)) for n in range(4)]
    got = [await asyncio.wait_for(layer.receive(channel), 5) for _ in range(200)]
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [m["n"] for m in got if m["from"] == number] == list(range(50))


async def test_a_receiver_gets_a_copy(layer):
    channel = await layer.new_channel()
    message = {"list": [1]}
    await layer.send(channel, message)
    message["list"].append(2)
    assert await layer.receive(channel) == {"list": [1]}


async def test_a_full_channel_loses_for_itself_alone(layer):
    slow, quick = await layer.new_channel(), await layer.new_channel()
    await layer.group_add("g", slow)
    for _ in range(3):
        await layer.group_send("g", {"n": 1})
    await layer.group_add("g", quick)
    await layer.group_send("g", {"n": 2})
    assert await asyncio.wait_for(layer.receive(quick), 5) == {"n": 2}
    with pytest.raises(ChannelFull):
        await layer.send(slow, {"n": 3})
    send_from_a_thread(lambda: layer.send(slow, {"n": 3})).join()
    assert [await layer.receive(slow) for _ in range(3)] == [{"n": 1}] * 3


async def test_who_left_a_group_hears_nothing(layer):
    channel = await layer.new_channel()
    await layer.group_add("g", channel)
    await layer.group_discard("g", channel)
    await layer.group_send("g", {"n": 1})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(layer.receive(channel), 0.05)


async def test_giving_up_once_does_not_cost_the_next_message_of_a_group(layer):
    channel = await layer.new_channel()
    await layer.group_add("g", channel)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(layer.receive(channel), 0.05)
    send_from_a_thread(lambda: layer.group_send("g", {"n": 1})).join()
    assert await asyncio.wait_for(layer.receive(channel), 5) == {"n": 1}


async def test_nothing_is_kept_for_receivers_that_are_gone(layer):
    channel = await layer.new_channel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(layer.receive(channel), 0.05)
    await layer.send(channel, {"n": 1})
    assert layer._boxes == {}


def test_a_receiver_whose_loop_has_ended_is_dropped(layer):
    async def leave_behind():
        channel = await layer.new_channel()
        await layer.group_add("g", channel)

    asyncio.run(leave_behind())
    asyncio.run(layer.group_send("g", {"n": 1}))
    assert layer._groups == {}
    assert layer._boxes == {}


async def test_names_are_checked(layer):
    with pytest.raises(TypeError):
        await layer.group_send("not a name", {})
    with pytest.raises(TypeError):
        await layer.send("not a name", {})
