"""Asks an engine whether it is there, how its work goes on, to sleep, and for a first token.

Owns the requests to engines on this host; judges nothing (`health.py` does). Never raises for an
engine that does not answer: that is an outcome.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec

from agent.contract.messages import HealthCheck, PortMapping
from agent.engines.base import Engine, Metrics
from agent.supervisor.health import Outcome, Probe, Work

log = logging.getLogger("agent.supervisor")
METRICS_TIMEOUT_S = 10.0
ENGINE_AWARE = "engine"  # the check's type that knows the engine's own ways (AGENT-08)
# What an engine says that does not know this kind of request: one for embeddings only, for instance.
NOT_ITS_KIND = (400, 404, 405, 501)
MOST_OF_ANSWER = 200
ANSWER_BYTES = 4 * 1024 * 1024  # of an answer that is read at all: an engine may be anybody's image


class ProbeTarget(msgspec.Struct, frozen=True):
    """Where and how to ask one engine: `port` by its check, `api_port` for all else; `key` is its own API
    key, `model` the name under which it serves."""

    host: str
    port: int
    check: HealthCheck
    engine: Engine | None
    key: str
    api_port: int = 0
    model: str = ""


def probe_port(check: HealthCheck, ports: list[PortMapping]) -> int:
    """The host port that the check means: that of its container port, else the first one; 0 for none."""
    for mapping in ports:
        if mapping.container_port == check.port:
            return mapping.host_port
    return ports[0].host_port if ports else 0


class Prober:
    """Probes through one HTTP session of its own, without proxy, redirects or kept connections."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def probe(self, target: ProbeTarget) -> Probe:
        """One probe of the kind that the check asks for."""
        if target.check.type == "none":
            return Probe(Outcome.OK)
        if target.check.type == "tcp":
            return await self._tcp(target)
        probe = await self._http(target)
        if target.check.type != ENGINE_AWARE or probe.outcome is Outcome.LOADING:
            return probe
        return msgspec.structs.replace(probe, work=await self.work(target))

    async def work(self, target: ProbeTarget) -> Work | None:
        """What it has in work; None where it does not say."""
        return None if target.engine is None else await self._work(target, target.engine.metrics)

    async def sleep(self, target: ProbeTarget, level: int, timeout_s: float) -> str:
        """Ask a vLLM-family engine to sleep (SLEEP-01); "" where it did, else what went wrong."""
        status, text = await self._post(target, f"/sleep?level={level}", None, timeout_s)
        return "" if 200 <= status < 300 else _told("/sleep", status, text)

    async def canary(self, target: ProbeTarget, timeout_s: float) -> str:
        """Ask for one token, or for the embedding of one; "" where it came, else what came instead."""
        body: dict[str, Any] = {"model": target.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        status, text = await self._post(target, "/v1/completions", body, timeout_s)
        if status == 200:
            return "" if _has_token(text) else _told("/v1/completions", status, text)
        if status in NOT_ITS_KIND:
            body = {"model": target.model, "input": "1"}
            other, answer = await self._post(target, "/v1/embeddings", body, timeout_s)
            if other == 200 and _has_embedding(answer):
                return ""
        return _told("/v1/completions", status, text)

    async def _post(
        self, target: ProbeTarget, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> tuple[int, str]:
        """Status and text; status 0 where there was no answer."""
        headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
        try:
            async with self._open().post(
                f"http://{target.host}:{target.api_port}{path}",
                json=body,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
                headers=headers,
            ) as response:
                answer = await _read(response)
                if answer is None:
                    return 0, f"an answer of more than {ANSWER_BYTES} bytes"
                return response.status, answer.decode(errors="replace")
        except TimeoutError:
            return 0, f"no answer within {timeout_s:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            return 0, _words(error)

    async def _tcp(self, target: ProbeTarget) -> Probe:
        try:
            opened = asyncio.open_connection(target.host, target.port)
            _, writer = await asyncio.wait_for(opened, target.check.timeout_seconds)
        except (OSError, TimeoutError) as error:
            return Probe(Outcome.FAILED, f"port {target.port} does not accept: {_words(error)}")
        writer.close()
        return Probe(Outcome.OK)

    async def _http(self, target: ProbeTarget) -> Probe:
        path = "/" + target.check.path.lstrip("/")
        timeout = aiohttp.ClientTimeout(total=target.check.timeout_seconds)
        try:
            async with self._open().get(
                f"http://{target.host}:{target.port}{path}", timeout=timeout, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Before an engine listens, its port may accept and reset: any failure is "not yet".
            return Probe(Outcome.FAILED, f"{path} does not answer: {_words(error)}")
        if 200 <= status < 300:
            return Probe(Outcome.OK)
        engine = target.engine if target.check.type == ENGINE_AWARE else None
        if engine is not None and status == engine.loading_status:
            return Probe(Outcome.LOADING, f"{path} answers {status}")
        return Probe(Outcome.FAILED, f"{path} answers {status}")

    async def _work(self, target: ProbeTarget, metrics: Metrics) -> Work | None:
        headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
        try:
            async with self._open().get(
                f"http://{target.host}:{target.port}{metrics.path}",
                timeout=aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S),
                allow_redirects=False,
                headers=headers,
            ) as response:
                if response.status != 200:
                    return None
                body = await _read(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("metrics of port %d were not read: %s", target.port, _words(error))
            return None
        return None if body is None else read_work(body.decode(errors="replace"), metrics)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True)
            # Not unpacked either: a small answer could become one of gigabytes.
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
            )
        return self._session


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The body; None for one of more than ANSWER_BYTES, which is not read to its end."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES:
            return None
    return bytes(body)


def read_work(text: str, metrics: Metrics) -> Work | None:
    """The values out of Prometheus text, summed over labels; None unless steps and running are there."""
    steps = _sum(text, metrics.progress_counter)
    running = _sum(text, metrics.running_gauge)
    if steps is None or running is None:
        return None
    return Work(steps=steps, running=running, waiting=_sum(text, metrics.waiting_gauge))


def _sum(text: str, name: str) -> float | None:
    values = []
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            try:
                values.append(float(line.rsplit(" ", 1)[1]))
            except ValueError:
                return None
    return sum(values) if values else None


def _told(path: str, status: int, text: str) -> str:
    words = " ".join(text.split())[:MOST_OF_ANSWER]
    return f"{path} answers {status}: {words}" if status else f"{path}: {words}"


def _has_token(text: str) -> bool:
    """Whether a completion holds what an engine makes of a token: choices, and one token counted."""
    answer = _decoded(text)
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return bool(answer.get("choices")) and isinstance(tokens, int) and tokens > 0


def _has_embedding(text: str) -> bool:
    rows = _decoded(text).get("data")
    first = rows[0] if isinstance(rows, list) and rows else None
    return isinstance(first, dict) and bool(first.get("embedding"))


def _decoded(text: str) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
