"""The agent's own `/metrics` (OPS-04): off unless `metrics_port` is set, and for this machine only unless a
token guards it.

Owns what is told and to whom. Values are read from the parts at the scrape; nothing here changes anything.
No task, service or tenant is named.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from agent.config import Settings
from agent.contract.states import Observed
from agent.door.listener import OUTCOMES
from agent.link.heartbeat import Heartbeat
from agent.link.reports import ReportQueue


class NodeMetrics:
    """A collector for prometheus_client. `door`: the counts of the node's door; None where it has none."""

    def __init__(
        self,
        *,
        version: str,
        heartbeat: Heartbeat,
        reports: ReportQueue,
        observed: Callable[[], Iterable[Observed]],
        door: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._version = version
        self._heartbeat = heartbeat
        self._reports = reports
        self._observed = observed
        self._door = door
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("heteroflow_agent", "The agent.", {"version": self._version})
        beats = CounterMetricFamily(
            "heteroflow_agent_heartbeats", "Heartbeats by what came back.", labels=["outcome"]
        )
        for outcome in ("answered", "refused", "no_answer"):
            beats.add_metric([outcome], self._heartbeat.outcomes[outcome])
        yield beats
        if self._heartbeat.answered_at is not None:
            age = self._clock() - self._heartbeat.answered_at
            yield _gauge("answer_age_seconds", "Since the server last answered a heartbeat.", age)
        yield _gauge("reports_waiting", "Reports that the server has not acknowledged.", len(self._reports))
        engines = GaugeMetricFamily("heteroflow_agent_engines", "Engines here by state.", labels=["state"])
        counts = Counter(self._observed())
        for state in Observed:
            engines.add_metric([state.value], counts[state])
        yield engines
        if self._door is not None:
            connections = CounterMetricFamily(
                "heteroflow_agent_door_connections", "Connections to the door by outcome.", labels=["outcome"]
            )
            for outcome in OUTCOMES:
                connections.add_metric([str(outcome)], self._door.get(outcome, 0))
            yield connections
        if self._heartbeat.cards is not None:
            known, unknown = self._heartbeat.cards
            yield _gauge("cards", "Cards, or those last known.", known)
            yield _gauge("cards_unknown", "1 while the cards' driver does not answer.", int(unknown))


class MetricsPort:
    """The small server of them. `open` raises OSError where the port can't be had."""

    def __init__(self, settings: Settings, metrics: NodeMetrics) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def open(self) -> None:
        application = web.Application()
        application.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.metrics_host, max(self._settings.metrics_port, 0))
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        token = self._settings.metrics_token
        offered = request.headers.get("Authorization", "")
        if token and not hmac.compare_digest(offered.encode(), f"Bearer {token}".encode()):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Bearer realm="metrics"'})
        return web.Response(body=generate_latest(self._registry), content_type="text/plain")


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"heteroflow_agent_{name}", text, value=value)
