"""The whole chain through the node's door: SDK, gateway, TLS, real agent, real engine (AGENT-16)."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.fakes.tiny_model import ANSWER
from tests.stack import Stack, running_stack, until
from tests.steady import steady_clock_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("door"), pytest.mark.req("AGENT-16")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("door"),
        layers=32,
        HETEROFLOW_AGENT_DIAL="door",
        HETEROFLOW_AGENT_DOOR_HOST="127.0.0.1",
    ) as started:
        yield started


def ports_of(process: psutil.Process | None, status: str, *, remote: bool = False) -> set[tuple[str, int]]:
    """Addresses that a process listens on, or is connected from or to."""
    assert process is not None
    found = set()
    for line in process.net_connections("tcp"):
        address = line.raddr if remote else line.laddr
        if line.status == status and address:
            found.add((address.ip, address.port))
    return found


def door_of(stack: Stack) -> dict:
    (node,) = stack.api("admin").rows("/api/v1/nodes")
    return dict(node["door"])


def engine_port(stack: Stack) -> int:
    (engine,) = stack.engines()
    ((host, port),) = ports_of(engine, "LISTEN")
    assert host == "127.0.0.1"  # from another machine there is no way but the door
    return port


def words_of(stack: Stack, **more: Any) -> Iterator[str]:
    """A streamed answer, word by word, as the SDK gives it."""
    stream = stack.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True, **more
    )
    return (part.choices[0].delta.content or "" for part in stream if part.choices)


def test_the_sdk_streams_through_the_door_and_no_other_way(stack: Stack) -> None:
    until(lambda: door_of(stack)["state"] == "open", lambda: f"{door_of(stack)} is open", 30)
    port = engine_port(stack)
    ((_, door_port),) = ports_of(stack.agent(), "LISTEN")
    assert "".join(words_of(stack, max_tokens=16)) == ANSWER
    peers: set[tuple[str, int]] = set()

    def passes_the_door() -> bool:
        for _ in words_of(stack, max_tokens=200, extra_body={"ignore_eos": True}):
            peers.update(ports_of(stack.server(), "ESTABLISHED", remote=True))
        return ("127.0.0.1", door_port) in peers

    # On a busy machine a short stream may be over, and its connection gone, before it is looked at.
    until(passes_the_door, lambda: f"{peers} has port {door_port}", 60)
    assert ("127.0.0.1", port) not in peers


def test_a_caller_that_leaves_frees_the_engine_within_a_second(stack: Stack) -> None:
    port = engine_port(stack)
    # The agent's probes connect to the engine as well, for a moment each; a call's connection stays.
    stream = stack.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x " * 900}],
        stream=True,
        max_tokens=500,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    (engine,) = stack.engines()
    assert len(ports_of(engine, "ESTABLISHED", remote=True)) >= 1
    with steady_clock_of(stack) as clock:
        stream.close()
        clock.within(
            1.0, lambda: not ports_of(engine, "ESTABLISHED", remote=True), lambda: "its connection ended"
        )
    assert engine_port(stack) == port


def test_after_a_new_start_of_the_agent_its_new_door_is_found(stack: Stack) -> None:
    before = ports_of(stack.agent(), "LISTEN")
    stack.kill(stack.agent())

    def answers() -> bool:
        try:
            return stack.ask() == ANSWER
        except Exception:
            return False

    until(answers, "the demo answers again", 60)
    assert ports_of(stack.agent(), "LISTEN") != before
    until(lambda: door_of(stack)["state"] == "open", lambda: f"{door_of(stack)} is open", 30)
