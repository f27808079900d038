"""The real agent process with a real engine and a real model, against the fake server."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import DesiredTask, HealthCheck, PortMapping, SleepOrder
from agent.contract.states import Desired, Observed, Phase
from apps.core.free_ports import free_ports
from tests.agent.fakes import make_spec
from tests.fakes.fake_server import TOKEN, FakeServer, answer_with
from tests.fakes.tiny_model import ANSWER, make_tiny_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KEY = "engine-key-of-this-test"
HEARTBEAT_S = 1.0


@dataclass
class Node:
    """A server, a model, and an agent process that may be ended and started again."""

    server: FakeServer
    folder: Path
    agents: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> asyncio.subprocess.Process:
        env = {
            "PATH": os.environ["PATH"],
            "HETEROFLOW_AGENT_SERVER_URL": self.server.url,
            "HETEROFLOW_AGENT_STATE_DIR": str(self.folder / "state"),
            "HETEROFLOW_AGENT_JOIN_TOKEN": TOKEN,
            "HETEROFLOW_AGENT_ALLOWED_VOLUME_PREFIXES": str(self.folder / "models"),
            "HETEROFLOW_AGENT_HEARTBEAT_S": str(HEARTBEAT_S),
            "HETEROFLOW_AGENT_LOG_ROUND_S": "0.1",
            "HETEROFLOW_AGENT_LEFTOVER_LOG_DELAY_S": "0.5",
            "MY_OWN_SECRET": "inherited",
        }
        with (self.folder / "agent.log").open("ab") as out:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent", cwd=ROOT, env=env, stdout=out, stderr=out
            )
        self.agents.append(agent)
        return agent

    async def wait_for(self, true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not true():
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"{what} not within {seconds} s\n{(self.folder / 'agent.log').read_text()}")
            await asyncio.sleep(0.02)

    def engines(self) -> list[psutil.Process]:
        """Living engine processes of this test, whoever their parent is."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            mine = any(str(self.folder) in word for word in line)
            if mine and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    async def serve(self, attempt: int = 1) -> int:
        """Let the server want a service and wait until it is ready; its port."""
        port = free_ports(1)[0]
        spec = make_spec(
            attempt=attempt,
            model_path=str(self.folder / "models" / "tiny"),
            ports=[PortMapping(8080, port)],
            engine_key=KEY,
            health_check=HealthCheck(interval_seconds=0.5),
            env={"LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_POOLING": "mean", "LD_PRELOAD": "/nowhere.so"},
        )
        self.server.desired.clear()
        self.server.want(spec, DesiredTask("task-a", attempt, Desired.RUN, stop_grace_seconds=3))
        await self.ready(1)
        return port

    async def ready(self, times: int) -> None:
        await self.wait_for(
            lambda: len(self.server.told("task-a", phase=Phase.READY)) >= times,
            f"ready for the {times}. time",
        )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    make_tiny_model(tmp_path / "models" / "tiny")
    async with FakeServer() as server:
        made = Node(server, tmp_path)
        yield made
        for agent in made.agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
        for engine in made.engines():
            engine.kill()


async def ask(port: int, key: str = KEY) -> tuple[int, dict[str, object]]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
        ) as response,
    ):
        return response.status, await response.json()


@pytest.mark.req("AGENT-01", "AGENT-03", "AGENT-04", "AGENT-17", "LIFE-08")
async def test_from_join_to_answer_to_stop(node: Node) -> None:
    agent = await node.start()
    port = await node.serve()
    status, answer = await ask(port)
    assert status == 200
    assert ANSWER in json.dumps(answer)
    assert (await ask(port, "another-key"))[0] == 401
    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "input": "hi"}
        headers = {"Authorization": f"Bearer {KEY}"}
        async with session.post(
            f"http://127.0.0.1:{port}/v1/embeddings", json=body, headers=headers
        ) as response:
            assert response.status == 200

    (engine,) = node.engines()
    assert KEY not in " ".join(engine.cmdline())
    environment = engine.environ()
    assert {"MY_OWN_SECRET", "LD_PRELOAD"} & set(environment) == set()
    assert not any(name.startswith("HETEROFLOW_AGENT_J") for name in environment)
    assert engine.ppid() == agent.pid
    agents_own = [c for c in psutil.Process(agent.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert agents_own == []

    (beat,) = node.server.heartbeats[-1:]
    assert beat.dial.host == "127.0.0.1"
    assert [e.name for e in beat.engines if e.version] == ["llamacpp"]
    await node.wait_for(lambda: node.server.heartbeats[-1].running, "the heartbeat names the engine")
    assert node.server.heartbeats[-1].running[0].host_ports == [port]

    node.server.desired["task-a", 1] = DesiredTask("task-a", 1, Desired.STOP, stop_grace_seconds=3)
    await node.server.say_look()
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.GONE), "gone")
    assert node.engines() == []
    agent.terminate()
    assert await asyncio.wait_for(agent.wait(), 8) == 0
    assert "Traceback" not in (node.folder / "agent.log").read_text()


@pytest.mark.req("AGENT-03", "AGENT-09", "AGENT-02")
async def test_killed_agent_leaves_no_engine_and_the_next_one_starts_it_again(node: Node) -> None:
    agent = await node.start()
    port = await node.serve()
    assert len(node.engines()) == 1
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    await node.wait_for(lambda: not node.engines(), "the engine died with its agent", 5)

    await node.start()
    await node.ready(2)
    assert ANSWER in json.dumps((await ask(port))[1])
    assert len(node.engines()) == 1
    assert len(node.server.joins) == 1  # the node's identity was kept
    assert len({c.incarnation for c in node.server.claims}) == 2
    assert {c.attempt for c in node.server.claims} == {1}


@pytest.mark.req("AGENT-09")
async def test_engine_killed_behind_its_back_is_reported_in_time(node: Node) -> None:
    await node.start()
    await node.serve()
    (engine,) = node.engines()
    before = asyncio.get_running_loop().time()
    engine.kill()
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.EXITED), "the exit was told")
    assert asyncio.get_running_loop().time() - before < 2 * HEARTBEAT_S
    (report,) = node.server.told("task-a", observed=Observed.EXITED)
    assert report.exit_code == 137
    assert report.reason is not None and report.reason.code is Code.EXITED
    assert 0 < len(report.last_log_lines) <= 20
    assert any("listening on" in line for line in report.last_log_lines)
    await node.wait_for(lambda: not node.server.heartbeats[-1].running, "the heartbeat names it no more")
    assert node.engines() == []  # restarting is the server's to decide


@pytest.mark.req("AGENT-10")
async def test_log_arrives_whole_through_faults_and_a_restart(node: Node) -> None:
    for fault in (answer_with(500), answer_with(200, "?")):
        node.server.fail_once("logs", fault)
    agent = await node.start()
    port = await node.serve()
    for _ in range(5):
        await ask(port)
    agent.kill()
    await agent.wait()
    await node.start()
    await node.ready(2)
    await ask(port)
    file = node.folder / "state" / "logs" / "task-a.1.log"
    await node.wait_for(
        lambda: node.server.logs.get(("task-a", 1), "").encode() == file.read_bytes(), "the log is the same"
    )
    assert node.server.logs["task-a", 1].count("listening on http") == 4  # two lines a start


@pytest.mark.req("AGENT-14")
async def test_server_away_touches_nothing_and_hears_all_afterwards(node: Node) -> None:
    await node.start()
    port = await node.serve()
    node.server.desired.clear()
    beats = len(node.server.headers)
    for path in ("heartbeat", "reports", "claims", "logs"):
        node.server.always[path] = answer_with(500)
    await node.wait_for(lambda: len(node.server.headers) > beats + 3, "heartbeats go on")
    assert (await ask(port))[0] == 200
    (engine,) = node.engines()
    engine.kill()
    node.server.always.clear()
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.EXITED), "told afterwards")
    sequences = [r.sequence for r in node.server.reports]
    assert sequences == list(range(1, len(sequences) + 1))


@pytest.mark.req("AGENT-14", "AGENT-09", "AGENT-02")
async def test_how_an_engine_ended_is_told_by_the_next_run_where_this_one_could_not(node: Node) -> None:
    agent = await node.start()
    await node.serve()
    node.server.always["reports"] = answer_with(503)
    told = len(node.server.reports)
    (engine,) = node.engines()
    engine.kill()
    waiting = node.folder / "state" / "reports.jsonl"
    await node.wait_for(lambda: b'"exit_code":137' in waiting.read_bytes(), "the end is on disk")
    agent.kill()
    await agent.wait()
    claims = len(node.server.claims)

    await node.start()
    first_run = node.server.heartbeats[-1].incarnation
    await node.wait_for(lambda: node.server.heartbeats[-1].incarnation != first_run, "the next run is heard")
    (named,) = node.server.heartbeats[-1].running
    assert (named.task_id, named.attempt, named.observed) == ("task-a", 1, Observed.EXITED)
    # It is still wanted by the list; but the server does not know yet how it ended.
    beats = len(node.server.heartbeats)
    await node.wait_for(lambda: len(node.server.heartbeats) > beats + 1, "two more heartbeats")
    assert len(node.server.claims) == claims and node.engines() == []
    node.server.desired.clear()  # and heard of: this server would grant what the real one refuses
    beats = len(node.server.heartbeats)
    await node.wait_for(lambda: len(node.server.heartbeats) > beats + 1, "the list is the new one")
    del node.server.always["reports"]
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.EXITED), "told by the next run")
    late = node.server.reports[told:]
    assert [(r.sequence, r.exit_code) for r in late if r.observed is Observed.EXITED] == [(1, 137)]
    assert any("listening on" in line for line in late[0].last_log_lines)
    assert waiting.stat().st_mode & 0o777 == 0o600
    await node.wait_for(lambda: waiting.read_bytes() == b"", "nothing waits any more")
    await node.wait_for(lambda: not node.server.heartbeats[-1].running, "it is named no more")


@pytest.mark.req("AGENT-03")
async def test_terminated_agent_stops_its_engines_and_says_so(node: Node) -> None:
    agent = await node.start()
    await node.serve()
    agent.terminate()
    assert await asyncio.wait_for(agent.wait(), 8) == 0
    assert node.engines() == []
    (report,) = node.server.told("task-a", observed=Observed.EXITED)
    assert report.reason is not None and report.reason.code is Code.AGENT_RESTARTED


async def test_model_that_cannot_be_loaded_is_told_with_its_last_words(node: Node) -> None:
    (node.folder / "models" / "tiny" / "model.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    await node.start()
    port = free_ports(1)[0]
    spec = make_spec(model_path=str(node.folder / "models/tiny/model.gguf"), ports=[PortMapping(8080, port)])
    node.server.want(spec, DesiredTask("task-a", 1, Desired.RUN))
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.EXITED), "the failure was told")
    (report,) = node.server.told("task-a", observed=Observed.EXITED)
    assert report.exit_code == 1
    assert any("could not be loaded" in line for line in report.last_log_lines)


@pytest.mark.req("AGENT-02")
async def test_second_agent_with_the_same_directory_is_refused(node: Node) -> None:
    await node.start()
    await node.wait_for(lambda: node.server.heartbeats, "joined")
    second = await node.start()
    assert await asyncio.wait_for(second.wait(), 10) == 2
    assert "another agent runs" in (node.folder / "agent.log").read_text()


@pytest.mark.req("SLEEP-01", "SLEEP-02", "AGENT-03")
async def test_process_is_ended_to_sleep_and_started_to_wake(node: Node) -> None:
    await node.start()
    port = await node.serve()
    spec = node.server.specs["task-a", 1]
    wish = SleepOrder(drain_seconds=20, settle_seconds=0.5)
    node.server.want(spec, DesiredTask("task-a", 1, Desired.STOP, 3, wish))
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.ASLEEP), "asleep")
    (report,) = node.server.told("task-a", observed=Observed.ASLEEP)
    assert report.notes == [reason(Code.SLEEP_CALL_SKIPPED, engine="llamacpp")]
    assert node.engines() == []
    node.server.want(spec, DesiredTask("task-a", 1, Desired.RUN, 3))
    await node.ready(2)
    assert (await ask(port))[0] == 200
    assert len(node.server.claims) == 1  # its spec was kept


@pytest.mark.req("SLEEP-03", "AGENT-03")
async def test_process_that_slept_is_claimed_anew_by_the_next_agent(node: Node) -> None:
    agent = await node.start()
    port = await node.serve()
    spec = node.server.specs["task-a", 1]
    wish = SleepOrder(drain_seconds=20, settle_seconds=0.5)
    node.server.want(spec, DesiredTask("task-a", 1, Desired.STOP, 3, wish))
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.ASLEEP), "asleep")
    agent.kill()
    await agent.wait()
    await node.start()
    await node.wait_for(lambda: node.server.told("task-a", observed=Observed.GONE), "nothing was kept")
    assert node.server.told("task-a", observed=Observed.GONE)[0].reason == reason(Code.CONTAINER_GONE)
    node.server.want(spec, DesiredTask("task-a", 1, Desired.RUN, 3))
    await node.ready(2)
    assert (await ask(port))[0] == 200 and len(node.server.claims) == 2
