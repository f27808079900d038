"""`/metrics` of the running whole: one scrape tells of API, gateway, loops, node and alerts (OPS-04)."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.stack import METRICS_TOKEN, Stack, until

pytestmark = pytest.mark.req("OPS-04")


def scrape(stack: Stack) -> dict[str, float]:
    asked = urllib.request.Request(
        f"{stack.base_url}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:
        text = answer.read().decode()
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("heteroflow_")
    }


def test_one_scrape_tells_of_all_parts(running_server: Stack) -> None:
    running_server.ask()
    found = until(lambda: whole(running_server), lambda: str(sorted(scrape(running_server))))
    assert found["heteroflow_nodes online"] >= 1
    assert found["heteroflow_gateway_requests_total completed 200"] >= 1
    assert found["heteroflow_gateway_tokens_total completion tiny"] >= 8
    assert found["heteroflow_loop_last_run_succeeded scheduling.place"] == 1
    assert found["heteroflow_http_requests_total POST agent/v1/heartbeat 2xx"] >= 1
    assert found["heteroflow_alerts_open node_lost"] == 0


def whole(stack: Stack) -> dict[str, float] | None:
    """A scrape once the loops that come seldom have run, too."""
    found = scrape(stack)
    wanted = {"heteroflow_loop_last_run_succeeded ops.watch", "heteroflow_gateway_table_version"}
    return found if wanted <= found.keys() else None
