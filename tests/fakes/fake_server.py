"""The agent protocol's server side, in a test's own event loop.

Holds a desired list, grants claims by the newest incarnation, remembers everything it was told, and
can be told to misbehave. Speaks the real contract messages, so that a wrong agent message fails.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

from agent.contract import wire
from agent.contract.codes import Code, reason
from agent.contract.messages import (
    AgentError,
    ClaimGranted,
    ClaimRefused,
    ClaimRequest,
    DesiredTask,
    FileAnswer,
    FileOrder,
    FileReply,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatUnchanged,
    JoinReply,
    JoinRequest,
    LogReply,
    LogRequest,
    Look,
    ReportReply,
    ReportRequest,
    TaskReport,
    TaskSpec,
)
from agent.contract.states import Observed, Phase

TOKEN = "jt-token-of-the-test"
Fault = Callable[[web.Request], Any]


class FakeServer:
    """Use as an async context manager; `url` is its address."""

    def __init__(self) -> None:
        self.desired: dict[tuple[str, int], DesiredTask] = {}
        self.specs: dict[tuple[str, int], TaskSpec] = {}
        self.complete = True
        self.released_cards: list[str] = []
        self.faults: dict[str, list[Fault]] = {}  # path -> answers to give first, in order
        self.always: dict[str, Fault] = {}  # path -> answer to give while it stands here
        self.joins: list[JoinRequest] = []
        self.nodes: dict[str, str] = {}  # secret hash -> node id
        self.heartbeats: list[HeartbeatRequest] = []
        self.claims: list[ClaimRequest] = []
        self.reports: list[TaskReport] = []
        self.report_requests: list[ReportRequest] = []
        self.logs: dict[tuple[str, int], str] = {}
        self.file_orders: dict[str, FileOrder] = {}
        self.files: dict[str, bytearray] = {}  # by request
        self.file_answers: list[FileAnswer] = []
        self.newest: tuple[float, str] = (0.0, "")
        self.headers: list[dict[str, str]] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeServer":
        app = web.Application(client_max_size=80 << 20)
        for name in ("join", "heartbeat", "claims", "reports", "logs", "file-answers", "files"):
            app.router.add_post(f"/agent/v1/{name}", self._answer)
        app.router.add_get("/ws/agent", self._lookout)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for socket in self.sockets:
            await socket.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- what tests say ---------------------------------------------------------------------------

    def want(self, spec: TaskSpec, task: DesiredTask) -> None:
        """List an attempt, and give its spec to whoever claims it."""
        key = task.task_id, task.attempt
        self.desired[key], self.specs[key] = task, spec

    def fail_once(self, path: str, fault: Fault) -> None:
        self.faults.setdefault(path, []).append(fault)

    async def say_look(self) -> None:
        for socket in self.sockets:
            if not socket.closed:
                await socket.send_bytes(wire.encode(Look()))

    def told(
        self, task_id: str, *, phase: Phase | None = None, observed: Observed | None = None
    ) -> list[TaskReport]:
        """Reports on a task, in the order of their coming."""
        return [
            r
            for r in self.reports
            if r.task_id == task_id
            and (phase is None or r.phase is phase)
            and (observed is None or r.observed is observed)
        ]

    # --- the protocol -----------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rsplit("/", 1)[1]
        body = await request.read()
        self.headers.append(dict(request.headers))
        waiting = self.faults.get(path)
        fault = waiting.pop(0) if waiting else self.always.get(path)
        if fault is not None:
            answer = fault(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                return answer
        if path != "join" and self._node_of(request) is None:
            return refuse(401, "unknown_credential")
        if path == "files":
            return web.Response(
                body=wire.encode(self._on_piece(request, body)), content_type="application/json"
            )
        taken = getattr(self, f"_on_{path.replace('-', '_')}")
        return web.Response(body=wire.encode(taken(body)), content_type="application/json")

    def _node_of(self, request: web.Request) -> str | None:
        text = request.headers.get("Authorization", "").removeprefix("Bearer ")
        node, _, secret = text.partition(":")
        return node if self.nodes.get(hashlib.sha256(secret.encode()).hexdigest()) == node else None

    def _on_join(self, body: bytes) -> JoinReply:
        message = wire.decode(body, JoinRequest)
        self.joins.append(message)
        node = self.nodes.setdefault(message.secret_sha256, f"node-{len(self.nodes) + 1:016d}")
        return JoinReply(node_id=node, name=message.hostname)

    def _on_heartbeat(self, body: bytes) -> HeartbeatReply | HeartbeatUnchanged:
        message = wire.decode(body, HeartbeatRequest)
        self.heartbeats.append(message)
        self.newest = max(self.newest, (message.started_at, message.incarnation))
        tasks = list(self.desired.values())
        digest = wire.hash_desired(tasks)
        if self.complete and message.desired_hash == digest:
            return HeartbeatUnchanged(digest, list(self.file_orders.values()), self.released_cards)
        orders = list(self.file_orders.values())
        return HeartbeatReply(digest, self.complete, tasks, orders, self.released_cards)

    def _on_claims(self, body: bytes) -> ClaimGranted | ClaimRefused:
        message = wire.decode(body, ClaimRequest)
        self.claims.append(message)
        spec = self.specs.get((message.task_id, message.attempt))
        if spec is None or message.incarnation != self.newest[1]:
            return ClaimRefused(reason(Code.CLAIM_SUPERSEDED))
        return ClaimGranted(spec=spec)

    def _on_reports(self, body: bytes) -> ReportReply:
        message = wire.decode(body, ReportRequest)
        self.report_requests.append(message)
        known = max(
            (
                r.sequence
                for m in self.report_requests[:-1]
                if m.incarnation == message.incarnation
                for r in m.reports
            ),
            default=0,
        )
        self.reports += [r for r in message.reports if r.sequence > known]
        return ReportReply(up_to_sequence=message.reports[-1].sequence)

    def _on_logs(self, body: bytes) -> LogReply:
        message = wire.decode(body, LogRequest)
        key = message.task_id, message.attempt
        held = self.logs.get(key, "").encode()
        if message.offset <= len(held):
            held += message.text.encode()[len(held) - message.offset :]
            self.logs[key] = held.decode()
        return LogReply(next_offset=len(held))

    def _on_file_answers(self, body: bytes) -> FileReply:
        message = wire.decode(body, FileAnswer)
        self.file_answers.append(message)
        self.file_orders.pop(message.request_id, None)
        return FileReply(0, done=True)

    def _on_piece(self, request: web.Request, body: bytes) -> FileReply:
        request_id, asked = request.query["request_id"], request.query
        held = self.files.setdefault(request_id, bytearray())
        order = self.file_orders.get(request_id)
        assert hashlib.sha256(body).hexdigest() == asked["sha256"]
        if int(asked["offset"]) == len(held):
            held += body
        if order is not None:
            order.offset, order.version = len(held), asked["version"]
        if done := len(held) >= int(asked["size"]):
            self.file_orders.pop(request_id, None)
        return FileReply(len(held), done=done)

    async def _lookout(self, request: web.Request) -> web.StreamResponse:
        if self._node_of(request) is None:
            return refuse(401, "unknown_credential")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        async for message in socket:
            if message.type is WSMsgType.ERROR:
                break
        return socket


def refuse(status: int, code: str) -> web.Response:
    """A refusal in the contract's own shape."""
    body = wire.encode(AgentError(code=code, detail=f"{code} says the fake server"))
    return web.Response(status=status, body=body, content_type="application/json")


def answer_with(status: int, text: str = "") -> Fault:
    """A fault: this status with this body, as a proxy or a broken server gives it."""
    return lambda _: web.Response(status=status, text=text)


def hang(seconds: float) -> Fault:
    """A fault: no answer for so long."""

    async def _wait(_: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.Response(status=504)

    return _wait
