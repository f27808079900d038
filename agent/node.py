"""Puts one agent together and runs it until it is told to end.

Owns the order of start and end. Runs on the main thread: engines started from another one would die
with it (`agent/runtime/process.py`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from agent import __version__
from agent.config import ConfigError, Settings
from agent.contract.messages import DialTarget, HeartbeatRequest, JoinReply, JoinRequest
from agent.door.opening import open_door
from agent.door.targets import find_in
from agent.errors import ServerRefused, ServerUnreachable, Superseded
from agent.gpu.cardgate import CardGate
from agent.gpu.host import read_host
from agent.gpu.readings import NodeReadings
from agent.identity import Identity, StateDir, machine_id, new_incarnation
from agent.link.client import ServerClient
from agent.link.files import FileSender
from agent.link.heartbeat import Heartbeat
from agent.link.logroom import LogRoom
from agent.link.logship import LogShipper
from agent.link.lookout import keep_lookout
from agent.link.metrics import MetricsPort, NodeMetrics
from agent.link.reportfile import ReportFile
from agent.link.reports import ReportQueue
from agent.plainlog import MASKING
from agent.runtime.base import Runtime
from agent.runtime.making import make_runtime
from agent.supervisor.desired import DesiredList
from agent.supervisor.probe import Prober
from agent.supervisor.sleepmarks import SleepMarks
from agent.supervisor.supervisor import Supervisor

log = logging.getLogger("agent")
JOIN_MAX_PAUSE_S = 15.0
LAST_REPORTS_S = 2.0
AFTER_FAULT_S = 1.0


async def run_node(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError, ServerRefused (join) or Superseded."""
    state_dir = StateDir(Path(settings.state_dir))
    state_dir.open()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        identity = state_dir.load_identity()
        MASKING.add(identity.secret)
        runtime = make_runtime(settings, state_dir, identity)
        warn_of_missing_folders(settings)
        for name in runtime.clean_left_overs():
            log.warning("%s was left behind by an earlier run; ended", name)
        async with ServerClient(settings) as client:
            joining = asyncio.ensure_future(_join(client, settings, state_dir, identity))

            async def tell() -> None:
                await tell_of_silence(client, settings, identity)

            if await _first(stop, joining) and await _first(
                stop, asyncio.ensure_future(wait_until_known(runtime, settings, tell))
            ):
                await _work(client, settings, state_dir, identity, runtime, stop)
    finally:
        state_dir.close()


def warn_of_missing_folders(settings: Settings) -> None:
    """Name each allowed folder that is not there. No refusal: it may be mounted later."""
    for folder in settings.allowed_volume_prefixes:
        if not Path(folder).is_dir():
            log.warning(
                "allowed_volume_prefixes: there is no folder %r on this machine, so nothing can be read"
                " there. Make or mount it, or correct the name; in the environment ':' separates several.",
                folder,
            )


async def wait_until_known(runtime: Runtime, settings: Settings, tell: Callable[[], Awaitable[None]]) -> None:
    """Wait until the runtime can say what runs: the first heartbeat must name what was adopted, since
    the server takes what is missing from it for gone. What to mend is said after `docker_silence_s`, and the
    server is told once a heartbeat from then on."""
    tell_at = time.monotonic() + settings.docker_silence_s
    warned = False
    while not runtime.answers():
        if time.monotonic() >= tell_at:
            if not warned:
                warned = True
                log.warning(
                    "Docker does not answer at %s, so this node stays offline: what runs on it is not known."
                    " Start Docker there, give its socket as docker_host, or set runtime = process.",
                    settings.docker_host,
                )
            await tell()
            tell_at = time.monotonic() + settings.heartbeat_s
        await asyncio.sleep(0.1)


async def tell_of_silence(client: ServerClient, settings: Settings, identity: Identity) -> None:
    """Say that Docker is silent, by a run that says nothing else. An answer, or none, changes nothing."""
    run = new_incarnation()
    try:
        await client.heartbeat(
            HeartbeatRequest(
                incarnation=run.id,
                started_at=run.started_at,
                sequence=1,
                desired_hash="",
                sent_at=time.time(),
                machine_id=machine_id(identity),
                runtime=settings.runtime,
                host=read_host(Path(settings.state_dir)),
                dial=DialTarget(settings.engine_host),
                cards_unknown=True,
                agent_version=__version__,
                runtime_silent=True,
            )
        )
    except (ServerUnreachable, ServerRefused) as error:
        log.debug("the server was not told of it: %s", error)


async def _first(stop: asyncio.Event, joining: asyncio.Future[None]) -> bool:
    """Wait for one step of the start; False when the agent is told to end before."""
    told = asyncio.ensure_future(stop.wait())
    both: list[asyncio.Future[Any]] = [told, joining]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if joining.done():
        joining.result()
        return True
    joining.cancel()
    return False


async def _join(client: ServerClient, settings: Settings, state_dir: StateDir, identity: Identity) -> None:
    """Get this node's id, once in its life; the same token and secret may be sent again and again."""
    if not identity.node_id:
        request = JoinRequest(
            token=_join_token(settings),
            secret_sha256=identity.secret_sha256,
            machine_id=machine_id(identity),
            hostname=socket.gethostname(),
            agent_version=__version__,
        )
        MASKING.add(request.token)
        reply = await _ask_to_join(client, request)
        identity.node_id = reply.node_id
        state_dir.save_identity(identity)
        log.info("joined as %s (%s)", reply.node_id, reply.name)
    client.set_credential(identity.node_id, identity.secret)


async def _ask_to_join(client: ServerClient, request: JoinRequest) -> JoinReply:
    async for turn in AsyncRetrying(
        retry=retry_if_exception_type(ServerUnreachable),
        wait=wait_exponential_jitter(multiplier=0.3, max=JOIN_MAX_PAUSE_S),
        before_sleep=lambda state: log.warning(
            "not joined yet: %s", state.outcome and state.outcome.exception()
        ),
    ):
        with turn:
            return await client.join(request)
    raise AssertionError("unreachable: the retry never gives up")


def _join_token(settings: Settings) -> str:
    if settings.join_token:
        return settings.join_token
    if not settings.join_token_file:
        raise ConfigError(
            "This node has not joined yet and has no join_token. Make one in the console, and give it as "
            "join_token, join_token_file or HETEROFLOW_AGENT_JOIN_TOKEN."
        )
    try:
        return Path(settings.join_token_file).read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"join_token_file = {settings.join_token_file}: cannot be read: {error.strerror}."
        ) from error


async def _work(
    client: ServerClient,
    settings: Settings,
    state_dir: StateDir,
    identity: Identity,
    runtime: Runtime,
    stop: asyncio.Event,
) -> None:
    incarnation = new_incarnation()
    desired = DesiredList()
    prober = Prober()
    waiting = state_dir.path / "reports.jsonl"
    reports = ReportQueue(incarnation.id, client.report, file=ReportFile(waiting), held=True)
    mb = 1024 * 1024
    room = LogRoom(
        state_dir.logs,
        each=settings.log_copy_mb * mb,
        together=settings.log_copies_mb * mb,
        beside=waiting,
    )
    logs = LogShipper(settings, incarnation.id, client.log, room)
    logs.follow_left_overs(state_dir.logs, time.monotonic(), time.time())
    gate = CardGate(settings, state_dir.path / "cards.json")
    supervisor = Supervisor(
        settings=settings,
        incarnation=incarnation.id,
        desired=desired,
        runtime=runtime,
        claim=client.claim,
        engines=prober,
        reports=reports,
        logs=logs,
        marks=SleepMarks(state_dir.path / "asleep"),
        cards=gate,
    )
    gate.occupants = supervisor.occupants
    files = FileSender(settings, incarnation.id, send_piece=client.file_piece, send_answer=client.file_answer)
    door, dial = open_door(settings, state_dir.path, identity.secret_sha256, find_in(supervisor.attempts))

    def heard() -> None:
        reports.release()
        supervisor.wake()

    heartbeat = Heartbeat(
        settings=settings,
        incarnation=incarnation,
        machine_id=machine_id(identity),
        agent_version=__version__,
        dial=dial,
        send=client.heartbeat,
        readings=NodeReadings(settings, runtime, gate),
        desired=desired,
        running=lambda: reports.with_earlier(supervisor.running()),
        on_change=heard,
        on_files=files.take,
        on_released=gate.release,
    )
    log.info("agent %s runs as %s, incarnation %s", __version__, identity.node_id, incarnation.id)
    metrics = NodeMetrics(
        version=__version__,
        heartbeat=heartbeat,
        reports=reports,
        observed=lambda: [attempt.observed for attempt in supervisor.attempts.values()],
        door=door.counts if door is not None else None,
    )
    port = await _open_metrics(settings, metrics)
    supervisor.step(time.monotonic())  # adopts, so that the first heartbeat names what runs
    reporting = asyncio.ensure_future(_go_on("reports", reports.run))
    loops = [
        asyncio.ensure_future(_go_on(name, loop))
        for name, loop in (
            ("heartbeat", heartbeat.run),
            ("supervisor", lambda: supervisor.run(time.monotonic)),
            ("logs", lambda: logs.run(time.monotonic)),
            ("log room", logs.keep_room),
            ("files", files.run),
            ("lookout", lambda: keep_lookout(client, heartbeat.look)),
            *([("door", door.run)] if door is not None else []),
        )
    ]
    told = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait({told, reporting, *loops}, return_when=asyncio.FIRST_COMPLETED)
    log.info("ending: engines %s", "run on" if runtime.outlives_agent else "are stopped first")
    for task in (told, *loops):
        task.cancel()
    await supervisor.leave(time.monotonic)
    if not await reports.drained(LAST_REPORTS_S):
        log.warning("the last reports did not reach the server; they wait for the next run")
    await _last_logs(logs)
    await asyncio.to_thread(runtime.close, LAST_REPORTS_S)
    reporting.cancel()
    if door is not None:
        await door.close()
    await prober.close()
    if port is not None:
        await port.close()
    await asyncio.gather(told, reporting, *loops, return_exceptions=True)
    for task in done:
        if task is not told:
            task.result()  # raises what ended that loop


async def _open_metrics(settings: Settings, metrics: NodeMetrics) -> MetricsPort | None:
    """The port of the metrics where one is set. Engines matter more: a port that is taken is only said."""
    if not settings.metrics_port:
        return None
    port = MetricsPort(settings, metrics)
    try:
        await port.open()
    except OSError as error:
        log.error("metrics_port = %s can't be had: %s", settings.metrics_port, error.strerror)
        await port.close()
        return None
    return port


async def _go_on(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever: a fault in it is logged and it begins again, since its end would end all
    engines of this node. Raises Superseded only."""
    while True:
        try:
            await loop()
        except Superseded:
            raise
        except Exception:
            log.exception("the %s loop failed and begins again", name)
        await asyncio.sleep(AFTER_FAULT_S)


async def _last_logs(logs: LogShipper) -> None:
    try:
        await asyncio.wait_for(logs.round(time.monotonic()), LAST_REPORTS_S)
    except TimeoutError:
        log.warning("the last log lines wait for the next run")


def run(settings: Settings) -> int:
    """Run the agent on this (the main) thread; returns the process's exit code."""
    try:
        asyncio.run(run_node(settings))
    except Superseded as error:
        log.error("a newer agent of this node has taken over (%s); this one leaves", error)
        return 3
    except ServerRefused as error:
        log.error("the server refuses this node: %s", error)
        return 4
    return 0
