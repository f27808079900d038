"""`/metrics` through the front proxy, which hands it to any of the processes (OPS-04)."""

import urllib.request

import pytest

from tests.apps.ops.test_metrics import read
from tests.production_stack import ProductionStack
from tests.stack import METRICS_TOKEN, until

pytestmark = pytest.mark.req("OPS-04")
CALLS = ("heteroflow_gateway_requests_total", (("ending", "completed"), ("status", "200")))
PAGES = (
    "heteroflow_http_requests_total",
    (("method", "GET"), ("route", "healthz"), ("status", "2xx")),
)


def scrape(stack: ProductionStack) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    asked = urllib.request.Request(
        f"{stack.base_url}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return read(answer.read().decode())


def test_whichever_process_answers_it_is_the_sum_over_all(production: ProductionStack) -> None:
    """Calls go to two gateways, pages and scrapes to two others, in turn."""
    before = scrape(production)
    for _ in range(4):
        assert production.ask()
        with urllib.request.urlopen(f"{production.base_url}/healthz", timeout=10) as page:
            assert page.status == 200

    def complete() -> bool:
        # Calls are counted within a second, those of before perhaps after `before`; then all say the same.
        found = [scrape(production) for _ in range(4)]
        calls, pages = ({one.get(name, 0) for one in found} for name in (CALLS, PAGES))
        return (
            len(calls) == 1
            and min(calls) >= before.get(CALLS, 0) + 4
            and min(pages) >= before.get(PAGES, 0) + 4
        )

    until(complete, lambda: f"{before.get(CALLS)} and 4 more: {scrape(production).get(CALLS)}")
    found = scrape(production)
    assert ("heteroflow_gateway_table_version", ()) in found
    assert found[("heteroflow_hints_dropped_total", ())] >= 0


def test_every_server_process_takes_part(production: ProductionStack) -> None:
    held = list((production.data_dir / "metrics").glob("slot_*.lock"))
    assert len(held) >= 10  # two each of wsgi, asgi, worker, scheduler and beat
