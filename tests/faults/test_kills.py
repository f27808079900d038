"""kill -9 of each part: what was there comes back, and nothing of ours is left behind (OPS-06)."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.fakes.tiny_model import ANSWER
from tests.production_stack import running_production
from tests.stack import ROOT, Stack, new_stack, processes_of, running_stack, until

pytestmark = [pytest.mark.slow]

SLOW_LAYERS = 48  # about 60 tokens a second: a stream that lasts


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack that survives several kills; every test leaves it running."""
    with running_stack(tmp_path_factory.mktemp("killed"), layers=SLOW_LAYERS) as started:
        yield started


def answers(stack: Stack) -> bool:
    try:
        return stack.ask() == ANSWER
    except openai.APIError:
        return False


def identity(stack: Stack) -> dict[str, Any]:
    """What must stay the same over every restart."""
    group = stack.demo_group()
    nodes = [node["id"] for node in stack.api("admin").rows("/api/v1/nodes")]
    return {
        "group": group["id"],
        "task": [task["id"] for task in group["tasks"]],
        "endpoint": group["endpoint"]["id"],
        "route": [route["id"] for route in group["routes"]],
        "nodes": nodes,
    }


@pytest.mark.xdist_group("kills")
@pytest.mark.req("RECOV-05")
def test_server_killed_during_a_stream(stack: Stack) -> None:
    before, server = identity(stack), stack.server()
    assert server is not None
    stream = stack.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    parts = iter(stream)
    assert [next(parts) for _ in range(5)]
    stack.kill(server)
    with pytest.raises((openai.APIError, httpx2.TransportError)):
        for _ in parts:
            pass
    until(lambda: answers(stack), "it serves again")
    new = stack.server()
    assert new is not None
    assert new.pid != server.pid
    assert identity(stack) == before


@pytest.mark.xdist_group("kills")
@pytest.mark.req("AGENT-03", "RECOV-06")
def test_agent_killed_while_it_runs(stack: Stack) -> None:
    before, agent, engines = identity(stack), stack.agent(), stack.engines()
    assert engines
    stack.kill(agent)
    until(lambda: not any(engine.is_running() for engine in engines), "its engines end with it")
    until(lambda: answers(stack), "it serves again", limit_s=90)
    assert {engine.pid for engine in stack.engines()}.isdisjoint(engine.pid for engine in engines)
    assert identity(stack) == before


@pytest.mark.xdist_group("kills")
def test_engine_killed_while_it_runs(stack: Stack) -> None:
    before, engines = identity(stack), stack.engines()
    assert engines
    for engine in engines:
        stack.kill(engine)
    until(lambda: answers(stack), "it serves again", limit_s=90)
    assert identity(stack) == before


def log_text(stack: Stack, task_id: str, attempt: int) -> bytes:
    """All that the server has of an attempt's log."""
    text, place, api = "", 0, stack.api()
    while True:
        piece = api.call("GET", f"/api/v1/tasks/{task_id}/logs?attempt={attempt}&from={place}")
        if not piece["text"]:
            return text.encode()
        text, place = text + piece["text"], piece["end"]


@pytest.mark.xdist_group("kills")
@pytest.mark.req("AGENT-10", "RECOV-06")
def test_what_engines_wrote_is_on_the_server_to_the_byte(stack: Stack, tmp_path: Path) -> None:
    """Engines end with their agent here, so a kill of it cuts a log anywhere. Links keep what they wrote."""
    (task,) = stack.demo_group()["tasks"]
    written: dict[int, Path] = {}

    def keep() -> None:
        for file in (stack.data_dir / "agent" / "state" / "logs").glob(f"{task['id']}.*.log"):
            attempt = int(file.suffixes[0][1:])
            if attempt not in written:
                written[attempt] = tmp_path / file.name
                written[attempt].hardlink_to(file)

    talked: set[int] = set()

    def attempt() -> int:
        return int(stack.demo_group()["tasks"][0]["attempt"])

    def talk() -> None:
        before = attempt()
        answered = [answers(stack) for _ in range(4)]  # each leaves lines
        keep()
        if all(answered) and attempt() == before:
            talked.add(before)

    for killed in ([stack.agent], [stack.server], [stack.agent, stack.server]):
        talk()
        for process in [of() for of in killed]:
            stack.kill(process)
        until(lambda: answers(stack), "it serves again", limit_s=90)
    talk()
    # One that a kill met while it began has written little; those that answered have not.
    assert talked and all(written[one].read_bytes().count(b"\n") > 20 for one in talked)

    def equal() -> bool:
        return all(log_text(stack, task["id"], one) == file.read_bytes() for one, file in written.items())

    until(equal, lambda: f"all is carried: {written}\n{stack.printed()[-2000:]}", 90)


@pytest.mark.req("OPS-01", "OPS-06")
def test_killed_parent_leaves_nothing_and_a_second_start_goes_on(tmp_path: Path) -> None:
    stack = new_stack(tmp_path)
    try:
        stack.start()
        before, key = identity(stack), stack.api_key
        assert stack.process is not None
        assert len(processes_of(stack.data_dir)) >= 4  # up, server, agent, engine
        stack.process.kill()
        stack.process.wait(timeout=20)
        until(lambda: not processes_of(stack.data_dir), "nothing of ours is left", limit_s=20)

        stack.start()
        text = stack.printed()
        assert not re.search(r"\bsk-", text)  # no new key, and the old one is known to nobody but its owner
        assert "password as shown at the first start" in text
        assert stack.api_key == key
        until(lambda: answers(stack), "the old key still works")
        assert identity(stack) == before
        assert stack.stop() == 0
        assert not processes_of(stack.data_dir)
    finally:
        stack.end()


@pytest.mark.req("OPS-01")
@pytest.mark.parametrize(("profile", "ending"), [("embedded", signal.SIGINT), ("production", signal.SIGTERM)])
def test_asked_to_end_it_lets_a_running_stream_end_before_its_engine(
    tmp_path: Path, profile: str, ending: signal.Signals
) -> None:
    slow = {"layers": SLOW_LAYERS, "DRAIN_S": "60"}
    with running_stack(tmp_path, **slow) if profile == "embedded" else running_production(**slow) as stack:
        assert stack.process is not None
        stream = stack.openai().chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            max_tokens=200,
            extra_body={"ignore_eos": True},
        )
        parts = iter(stream)
        next(parts)
        stack.process.send_signal(ending)
        reasons = [part.choices[0].finish_reason for part in parts if part.choices]
        assert reasons[-1] == "length"
        assert stack.process.wait(timeout=60) == 0
        assert not processes_of(stack.data_dir)
        assert "Stopped." in stack.printed()


@pytest.mark.req("OPS-01")
def test_make_run_killed_leaves_nothing(tmp_path: Path) -> None:
    stack = new_stack(tmp_path)
    try:
        stack.start(["make", "--no-print-directory", "run", f"ARGS=--model {stack.model_file}"])
        assert stack.ask() == ANSWER  # at once: what is printed works when it is printed
        assert stack.process is not None
        stack.process.kill()  # make itself
        stack.process.wait(timeout=20)
        until(lambda: not processes_of(stack.data_dir), "nothing of ours is left", limit_s=20)
    finally:
        stack.end()


@pytest.mark.req("OPS-01")
def test_two_side_by_side(tmp_path: Path) -> None:
    with running_stack(tmp_path / "one") as one, running_stack(tmp_path / "two") as two:
        assert (one.ask(), two.ask()) == (ANSWER, ANSWER)
        assert one.api_key != two.api_key
        with pytest.raises(openai.AuthenticationError):
            one.openai(two.api_key).models.list()
        second = subprocess.run(
            ["make", "--no-print-directory", "run"],
            cwd=ROOT,
            env={**one.environment, "PORT": str(new_stack(tmp_path / "three").port)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode != 0
        assert f"already runs with DATA_DIR={one.data_dir}" in second.stderr
