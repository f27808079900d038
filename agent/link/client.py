"""The agent's questions to the server, one method a message (docs/contract.md).

Owns the HTTP session, the credential header and the sorting of answers: a usable answer, a refusal
(ServerRefused), or none (ServerUnreachable). All connections are opened from here (AGENT-01).
Never follows a redirect: the credential goes to the configured server only.
"""

from __future__ import annotations

import io
import ssl
import uuid
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from agent.config import Settings
from agent.contract import wire
from agent.contract.messages import (
    CONTRACT_HEADER,
    CONTRACT_VERSION,
    AgentError,
    ClaimAnswer,
    ClaimGranted,
    ClaimRefused,
    ClaimRequest,
    FileAnswer,
    FileReply,
    HeartbeatAnswer,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatUnchanged,
    JoinReply,
    JoinRequest,
    LogReply,
    LogRequest,
    ReportReply,
    ReportRequest,
)
from agent.errors import ServerRefused, ServerUnreachable
from agent.models.files import Piece

M = TypeVar("M")
MAX_ANSWER_BYTES = 16 << 20


class ServerClient:
    """One per agent. Use as an async context manager."""

    def __init__(self, settings: Settings) -> None:
        self._base = settings.server_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=settings.request_timeout_s)
        self._piece_timeout = aiohttp.ClientTimeout(total=settings.file_timeout_s)
        self._credential = ""
        self._ssl: aiohttp.Fingerprint | bool = True
        if settings.server_sha256:
            self._ssl = aiohttp.Fingerprint(bytes.fromhex(settings.server_sha256.replace(":", "")))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServerClient:
        self._session = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def set_credential(self, node_id: str, secret: str) -> None:
        """Speak as this node from now on."""
        self._credential = f"{node_id}:{secret}"

    async def join(self, message: JoinRequest) -> JoinReply:
        return await self._post("join", message, JoinReply)

    async def heartbeat(self, message: HeartbeatRequest) -> HeartbeatAnswer:
        answer: HeartbeatAnswer = await self._post("heartbeat", message, HeartbeatReply | HeartbeatUnchanged)
        return answer

    async def claim(self, message: ClaimRequest) -> ClaimAnswer:
        answer: ClaimAnswer = await self._post("claims", message, ClaimGranted | ClaimRefused)
        return answer

    async def report(self, message: ReportRequest) -> ReportReply:
        return await self._post("reports", message, ReportReply)

    async def log(self, message: LogRequest) -> LogReply:
        return await self._post("logs", message, LogReply)

    async def file_answer(self, message: FileAnswer) -> FileReply:
        return await self._post("file-answers", message, FileReply)

    async def file_piece(self, incarnation: str, request_id: str, piece: Piece, sha256: str) -> FileReply:
        query = urlencode(
            {
                "incarnation": incarnation,
                "request_id": request_id,
                "offset": piece.offset,
                "size": piece.size,
                "version": piece.version,
                "sha256": sha256,
            }
        )
        return await self._post(f"files?{query}", piece, FileReply)

    def lookout(self) -> aiohttp.client._WSRequestContextManager:
        """The websocket on which the server says "look now"."""
        return self._open().ws_connect(
            f"{self._base}/ws/agent",
            headers=self._headers(),
            ssl=self._ssl,
            heartbeat=30.0,
            max_msg_size=1 << 16,
        )

    def _headers(self) -> dict[str, str]:
        headers = {CONTRACT_HEADER: str(CONTRACT_VERSION)}
        if self._credential:
            headers["Authorization"] = f"Bearer {self._credential}"
        return headers

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        return self._session

    async def _post(self, path: str, message: object, kind: type[M] | object) -> M:
        """Raises ServerUnreachable or ServerRefused, with the id that went out with the request."""
        request_id = f"req-{uuid.uuid4().hex}"
        try:
            return await self._exchange(path, message, kind, request_id)
        except (ServerUnreachable, ServerRefused) as error:
            error.request_id = request_id
            raise

    async def _exchange(self, path: str, message: object, kind: type[M] | object, request_id: str) -> M:
        raw = isinstance(message, Piece)
        kind_of_body = "application/octet-stream" if raw else "application/json"
        headers = {**self._headers(), "Content-Type": kind_of_body, "X-Request-Id": request_id}
        body = message.content if isinstance(message, Piece) else wire.encode(message)
        try:
            async with self._open().post(
                f"{self._base}/agent/v1/{path}",
                data=io.BytesIO(body) if raw else body,
                headers=headers,
                timeout=self._piece_timeout if raw else self._timeout,
                allow_redirects=False,
                ssl=self._ssl,
            ) as response:
                status = response.status
                answer = await _read(response)
        except (aiohttp.ServerFingerprintMismatch, ssl.SSLError, aiohttp.ClientSSLError) as error:
            raise ServerUnreachable(
                f"the server's certificate is not the one expected ({type(error).__name__})"
            ) from error
        except TimeoutError as error:
            raise ServerUnreachable("no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(str(error) or type(error).__name__) from error
        if status == 200:
            try:
                return wire.decode(answer, kind)  # type: ignore[arg-type]
            except (msgspec.DecodeError, ValueError) as error:
                raise ServerUnreachable(
                    f"/{path} answered something else than its message: {error}"
                ) from error
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise _refusal(status, answer)
        raise ServerUnreachable(f"/{path} answered {status}")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(1 << 16):
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise ServerUnreachable(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _refusal(status: int, body: bytes) -> ServerRefused:
    try:
        error = wire.decode(body, AgentError)
    except (msgspec.DecodeError, ValueError):
        return ServerRefused(status, "unknown", "the server refused without a reason")
    return ServerRefused(status, error.code, error.detail)
