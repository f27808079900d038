"""The last bytes of answers wait until their records are written, for a turn of the loop and no longer."""

import asyncio
from typing import Any

import aiohttp
import pytest

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.caller import Caller
from apps.gateway.plane.io.listener import Listener
from apps.gateway.plane.io.outbox import MOST_BYTES, Outbox
from apps.gateway.plane.io.straight import Straight
from tests.apps.gateway.test_listener import BY_LENGTH, Echo, feed, settle, statuses
from tests.apps.gateway.test_straight import BODY, call, take, warm  # noqa: F401 - a fixture
from tests.fakes.gateway import RunningGateway
from tests.fakes.transport import FakeTransport

pytestmark = pytest.mark.req("GW-12")


class Recording(Echo):
    """Notes how much each caller has got when records are written."""

    def __init__(self) -> None:
        super().__init__()
        self.wires: list[FakeTransport] = []
        self.seen: list[list[int]] = []

    def write_records(self) -> None:
        self.seen.append([len(statuses(wire)) for wire in self.wires])


def connect(count: int) -> tuple[Listener, list[Caller], Recording]:
    recording = Recording()
    listener = Listener(recording, GatewayConfig())
    callers = [Caller(listener) for _ in range(count)]
    for caller in callers:
        recording.wires.append(FakeTransport())
        caller.connection_made(recording.wires[-1])
    return listener, callers, recording


async def answered(recording: Recording) -> None:
    """Until all have their answer; a turn later each of them is in its wire."""
    async with asyncio.timeout(30):
        while any(statuses(wire) != [200] for wire in recording.wires):
            await asyncio.sleep(0)


async def test_answers_of_one_turn_go_out_together_after_one_writing_of_records() -> None:
    _, callers, recording = connect(3)
    for caller in callers:
        caller.data_received(BY_LENGTH)
    await answered(recording)
    assert recording.seen == [[0, 0, 0]]


async def test_a_listener_that_drains_still_hands_over_what_was_held_back() -> None:
    listener, (caller,), recording = connect(1)
    recording.free.clear()
    await feed(caller, BY_LENGTH)
    recording.free.set()
    while not listener.outbox._held:
        await asyncio.sleep(0)
    assert not recording.wires[0].written
    listener.drain()
    assert statuses(recording.wires[0]) == [200]
    assert recording.wires[0].gone
    await settle()


async def test_who_was_cut_off_takes_no_answer_from_the_others() -> None:
    listener, callers, recording = connect(2)
    for caller in callers:
        caller.data_received(BY_LENGTH)
    while not listener.outbox._held:
        await asyncio.sleep(0)
    callers[0].abort()
    await settle()
    assert [statuses(wire) for wire in recording.wires] == [[], [200]]


async def test_who_says_its_last_word_meanwhile_still_gets_what_was_answered() -> None:
    listener, (caller,), recording = connect(1)
    caller.data_received(BY_LENGTH)
    while not listener.outbox._held:
        await asyncio.sleep(0)
    caller.eof_received()
    recording.wires[0].close()  # as the transport does then
    await settle()
    assert statuses(recording.wires[0]) == [200]
    assert recording.seen[0] == [0]


async def test_records_that_cannot_be_written_hold_no_answer_up(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("of one record")

    got: list[bytes] = []
    outbox = Outbox(fail)
    outbox.hold(Wire(got), b"a")
    await asyncio.sleep(0)
    assert got == [b"a"]
    assert "records could not be written" in caplog.text


@pytest.mark.parametrize(
    "request_",
    [BY_LENGTH.replace(b"Host: x", b"Host: x\r\nConnection: close"), BY_LENGTH],
    ids=["the last one", "a long one"],
)
async def test_an_answer_that_is_not_held_back_follows_its_record_too(request_: bytes) -> None:
    _, (caller,), recording = connect(1)
    if request_ == BY_LENGTH:
        long = b"x" * MOST_BYTES
        request_ = request_.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % len(long) + long
    before = len(recording.seen)
    await feed(caller, request_)
    assert statuses(recording.wires[0]) == [200]
    assert len(recording.seen) > before


class Wire:
    def __init__(self, got: list[bytes], *, broken: bool = False) -> None:
        self._got, self._broken = got, broken

    def write(self, data: bytes) -> None:
        if self._broken:
            raise RuntimeError
        self._got.append(data)


async def test_one_that_fails_is_alone() -> None:
    got: list[bytes] = []
    outbox = Outbox(lambda: got.append(b"records"))
    for data in (b"a", b"b", b"c"):
        outbox.hold(Wire(got, broken=data == b"b"), data)
    assert got == []
    await asyncio.sleep(0)
    assert got == [b"records", b"a", b"c"]
    outbox.hold(Wire(got), b"d")
    await asyncio.sleep(0)
    assert got[3:] == [b"records", b"d"]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_of_a_call_without_a_task_is_before_its_record(
    warm: None,  # noqa: F811
    gateway: RunningGateway,
    http: aiohttp.ClientSession,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[int] = []
    write = Caller.write

    def note(self: Caller, data: bytes) -> None:
        if not stream or data.endswith(b"0\r\n\r\n"):
            recorded.append(len(gateway.records()))
        write(self, data)

    monkeypatch.setattr(Caller, "write", note)
    monkeypatch.setattr(Straight, "_hand_over", lambda self: pytest.fail("it is no ordinary call"))
    if stream:
        monkeypatch.setattr(Straight, "_begin_stream", follow_at_once)
    body: dict[str, Any] = {**BODY, "stream": stream}
    for number in (1, 2):
        async with http.post(gateway.url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()
        assert recorded == list(range(1, number + 1))


def follow_at_once(self: Straight, response: Any) -> None:
    if pieces := response.taken():
        self._succeed()
        self._follow(response, self._scan(), pieces)


async def test_what_is_answered_next_on_a_connection_never_overtakes_what_is_held_back() -> None:
    caller, wire, taking = take()
    caller.data_received(call(b"{}"))
    taking.replies[-1].whole(200, b"the first")
    caller.data_received(call(b"{}"))
    taking.replies[-1].stream(b"the second")
    assert wire.written.index(b"the first") < wire.written.index(b"the second")
    await settle()
    assert wire.written.count(b"the first") == 1
