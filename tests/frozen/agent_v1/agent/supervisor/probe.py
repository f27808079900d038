"""Asks an engine whether it is there, and how its work goes on.

Owns the requests to engines on this host; judges nothing (`health.py` does). Never raises for an
engine that does not answer: that is an outcome.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import msgspec

from agent.contract.messages import HealthCheck, PortMapping
from agent.engines.base import Engine, Metrics
from agent.supervisor.health import Outcome, Probe, Work

log = logging.getLogger("agent.supervisor")
METRICS_TIMEOUT_S = 10.0


class ProbeTarget(msgspec.Struct, frozen=True):
    """Where and how to ask one engine; `key` is its own API key."""

    host: str
    port: int
    check: HealthCheck
    engine: Engine | None
    key: str


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
        if target.engine is None or probe.outcome is Outcome.LOADING:
            return probe
        return msgspec.structs.replace(probe, work=await self._work(target, target.engine.metrics))

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
        if target.engine is not None and status == target.engine.loading_status:
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
                body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("metrics of port %d were not read: %s", target.port, _words(error))
            return None
        return read_work(body.decode(errors="replace"), metrics)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session


def read_work(text: str, metrics: Metrics) -> Work | None:
    """Both values out of Prometheus text, summed over labels; None unless both are there."""
    steps = _sum(text, metrics.progress_counter)
    running = _sum(text, metrics.running_gauge)
    return None if steps is None or running is None else Work(steps=steps, running=running)


def _sum(text: str, name: str) -> float | None:
    values = []
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            try:
                values.append(float(line.rsplit(" ", 1)[1]))
            except ValueError:
                return None
    return sum(values) if values else None


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
