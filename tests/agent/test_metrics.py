"""The agent's own metrics: off by default, for this machine only, and true (OPS-04)."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.config import ConfigError, LogFormat, load_settings
from agent.contract.states import Observed, Phase
from agent.errors import ServerUnreachable
from agent.link.metrics import MetricsPort, NodeMetrics
from agent.link.reports import ReportQueue
from agent.plainlog import JsonLine
from tests.agent.fakes import make_settings

pytestmark = pytest.mark.req("OPS-04")
TOKEN = "scrape-this-node"
DOOR = Counter({"open": 7, "mac": 2})


async def no_server(_: object) -> Any:
    raise ServerUnreachable("away")


@pytest.fixture
def heartbeat() -> SimpleNamespace:
    return SimpleNamespace(
        outcomes={"answered": 3, "refused": 0, "no_answer": 1}, answered_at=None, cards=None
    )


@pytest.fixture
async def port(tmp_path: Path, heartbeat: SimpleNamespace) -> AsyncIterator[MetricsPort]:
    reports = ReportQueue("run", no_server)
    reports.add("task-a", 1, Phase.READY, Observed.READY)
    metrics = NodeMetrics(
        version="9.9",
        heartbeat=heartbeat,  # type: ignore[arg-type]
        reports=reports,
        observed=lambda: [Observed.READY, Observed.READY, Observed.STARTING],
        door=DOOR,
        clock=lambda: 100.0,
    )
    # Port 0 means "none" to the agent; here any free one.
    made = MetricsPort(make_settings(tmp_path, metrics_token=TOKEN), metrics)
    await made.open()
    yield made
    await made.close()


async def scrape(port: MetricsPort, **headers: str) -> tuple[int, dict[tuple[str, ...], float]]:
    address = f"http://127.0.0.1:{port.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(address, headers=headers) as answer:
        text = await answer.text()
    found = {
        (sample.name.removeprefix("heteroflow_agent_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return answer.status, found


async def test_it_tells_what_is_and_leaves_out_what_is_not_known(
    port: MetricsPort, heartbeat: SimpleNamespace
) -> None:
    status, found = await scrape(port, Authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert found[("heartbeats_total", "no_answer")] == 1
    assert found[("reports_waiting",)] == 1
    assert (found[("engines", "ready")], found[("engines", "exited")]) == (2, 0)
    assert ("cards_unknown",) not in found and ("answer_age_seconds",) not in found
    counts = {outcome: found[("door_connections_total", outcome)] for outcome in ("open", "mac", "replay")}
    assert counts == {"open": 7, "mac": 2, "replay": 0}
    heartbeat.answered_at, heartbeat.cards = 97.5, (4, True)
    _, found = await scrape(port, Authorization=f"Bearer {TOKEN}")
    assert (found[("answer_age_seconds",)], found[("cards",)], found[("cards_unknown",)]) == (2.5, 4, 1)


def test_a_node_without_a_door_says_nothing_of_one(heartbeat: SimpleNamespace) -> None:
    bare = NodeMetrics(
        version="1",
        heartbeat=heartbeat,  # type: ignore[arg-type]
        reports=ReportQueue("r", no_server),
        observed=list,
    )
    assert "heteroflow_agent_door_connections" not in {family.name for family in bare.collect()}


async def test_without_the_token_it_tells_nothing(port: MetricsPort) -> None:
    assert await scrape(port) == (401, {})
    assert (await scrape(port, Authorization="Bearer nope"))[0] == 401


def settings_with(**values: str) -> dict[str, str]:
    named = {"SERVER_URL": "http://127.0.0.1:1", "STATE_DIR": "/var/lib/x", **values}
    return {f"HETEROFLOW_AGENT_{name}": value for name, value in named.items()}


def test_it_is_off_unless_asked_for_and_never_open_to_others() -> None:
    assert load_settings(None, settings_with()).metrics_port == 0
    assert load_settings(None, settings_with(METRICS_PORT="9100")).metrics_host == "127.0.0.1"
    with pytest.raises(ConfigError, match="metrics_token"):
        load_settings(None, settings_with(METRICS_PORT="9100", METRICS_HOST="10.0.0.1"))
    load_settings(None, settings_with(METRICS_PORT="9100", METRICS_HOST="10.0.0.1", METRICS_TOKEN=TOKEN))
    with pytest.raises(ConfigError, match="metrics_port = 70000"):
        load_settings(None, settings_with(METRICS_PORT="70000"))


def test_a_log_line_as_json_is_one_line() -> None:
    assert load_settings(None, settings_with(LOG_FORMAT="json")).log_format is LogFormat.JSON
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        told = (ValueError, error, None)
    record = logging.LogRecord("agent.link", logging.WARNING, "", 1, "a %s", ("b",), told)
    line = JsonLine("%(message)s").format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["level"], read["logger"], read["event"]) == (
        "warning",
        "agent.link",
        "a b (ValueError: two | lines)",
    )
    assert read["timestamp"].endswith("+00:00")


async def test_a_port_that_is_taken_stops_no_agent(tmp_path: Path, heartbeat: SimpleNamespace) -> None:
    from agent.node import _open_metrics

    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    number = taken.sockets[0].getsockname()[1]
    metrics = NodeMetrics(
        version="1", heartbeat=heartbeat, reports=ReportQueue("r", no_server), observed=list
    )  # type: ignore[arg-type]
    assert await _open_metrics(make_settings(tmp_path, metrics_port=number), metrics) is None
    assert await _open_metrics(make_settings(tmp_path), metrics) is None
    taken.close()
