"""Connections to replicas, by aiohttp: one pool a replica address, kept alive, never shared; those
behind a node's door go through it (`door.py`).

Sends the engine's own credential and nothing of the caller's but the body. Never retries and
never follows a redirect; its callers decide.
"""

import asyncio
import io
import time

import aiohttp
from yarl import URL

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import read_model_id
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.coalesce import Asking
from apps.gateway.plane.io.door import DoorConnector, DoorPass
from apps.routing.table import Replica

_CHUNKED_WRITE_BYTES = 1024 * 1024


class Unreachable(Exception):
    """The connection failed before any byte of a response. `refused`: it never came about."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__("refused" if refused else "closed")
        self.refused = refused


class Upstream:
    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._names: dict[tuple[str, int], tuple[float, str]] = {}
        self._asking = Asking[tuple[str, int], str]()

    async def start(self) -> None:
        # One more than calls may take, for the model list.
        limits = {"limit": 0, "limit_per_host": self._config.replica_connections + 1}
        silent_s, keepalive_s = self._config.peer_silent_s, self._config.keepalive_s
        kept = DoorConnector(peer_silent_s=silent_s, keepalive_timeout=keepalive_s, **limits)
        self._kept = self._session(kept)
        self._fresh = self._session(DoorConnector(peer_silent_s=silent_s, force_close=True, **limits))

    async def stop(self) -> None:
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    async def post(
        self, replica: Replica, path: str, body: bytes, *, headers: dict[str, str], fresh: bool = False
    ) -> aiohttp.ClientResponse:
        """Sends a request and waits for the head of its response, without a limit of its own.

        `fresh` takes a new connection. Raises Unreachable, or CallError 502 for what isn't HTTP.
        """
        session = self._fresh if fresh else self._kept
        if session is None:
            raise RuntimeError("Upstream.start() was not called")
        # aiohttp writes bytes in one piece, a file object piece by piece.
        payload = body if len(body) < _CHUNKED_WRITE_BYTES else io.BytesIO(body)
        headers = {**headers, **_credential(replica)}
        headers["Content-Type"] = "application/json"
        try:
            return await session.post(
                _url(replica, path), data=payload, headers=headers, allow_redirects=False, ssl=_ssl(replica)
            )
        except aiohttp.ClientConnectorError:
            raise Unreachable(refused=True) from None
        except aiohttp.ConnectionTimeoutError:
            raise Unreachable(refused=True) from None
        except aiohttp.ClientConnectionError:
            raise Unreachable(refused=False) from None
        except aiohttp.ClientError:
            raise errors.upstream_unreadable("is not HTTP") from None

    async def served_name(self, replica: Replica) -> str:
        """What the engine calls its model, by its own /v1/models if the table doesn't say (GW-05).

        Believed for `model_name_ttl_s`; an older one is used when the engine doesn't answer.
        Raises Unreachable or CallError when nothing is known.
        """
        if replica.served_model_name:
            return replica.served_model_name
        slot = (replica.task_id, replica.attempt)
        known = self._names.get(slot)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            return await self._asking.ask(slot, self._ask_name(replica))
        except (Unreachable, errors.CallError):
            if known is not None:
                return known[1]
            raise

    def forget_name(self, replica: Replica) -> None:
        """The engine didn't know its own name of before; ask again next time."""
        self._names.pop((replica.task_id, replica.attempt), None)

    async def _ask_name(self, replica: Replica) -> str:
        if self._kept is None:
            raise RuntimeError("Upstream.start() was not called")
        limit_s = self._config.model_name_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                url = _url(replica, "/v1/models")
                async with self._kept.get(
                    url, headers=_credential(replica), allow_redirects=False, ssl=_ssl(replica)
                ) as response:
                    body = await _read_up_to(response.content, self._config.big_body_bytes)
        except TimeoutError:
            raise errors.upstream_timeout("model list", limit_s) from None
        except aiohttp.ClientConnectorError:
            raise Unreachable(refused=True) from None
        except aiohttp.ClientError:
            raise Unreachable(refused=False) from None
        name = read_model_id(body) if response.status == 200 else None
        if name is None:
            raise errors.upstream_unreadable("to /v1/models names no model")
        if len(self._names) > 10_000:
            self._names.clear()
        self._names[(replica.task_id, replica.attempt)] = (
            time.monotonic() + self._config.model_name_ttl_s,
            name,
        )
        return name

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_timeout_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "heteroflow-gateway"},
            trust_env=False,
        )


async def _read_up_to(content: aiohttp.StreamReader, limit: int) -> bytes:
    """All of it, at most `limit` bytes: one read gives what is there now, which may be half."""
    body = bytearray()
    while len(body) < limit and (piece := await content.read(limit - len(body))):
        body += piece
    return bytes(body)


def _credential(replica: Replica) -> dict[str, str]:
    return {"Authorization": f"Bearer {replica.engine_key}"} if replica.engine_key else {}


def _ssl(replica: Replica) -> DoorPass | bool:
    return True if replica.door is None else DoorPass(replica)


def _url(replica: Replica, path: str) -> URL:
    scheme, at = ("http", replica) if replica.door is None else ("https", replica.door)
    host = f"[{at.host}]" if ":" in at.host else at.host
    return URL(f"{scheme}://{host}:{at.port}{path}", encoded=True)
