"""`/metrics` through the front proxy, which hands it to any of the processes (OPS-04)."""

import time
import urllib.request

import pytest

from tests.apps.ops.test_metrics import read
from tests.production_stack import ProductionStack
from tests.stack import METRICS_TOKEN, until

pytestmark = pytest.mark.req("OPS-04")
CALLS = ("heteroflow_gateway_requests_total", (("ending", "completed"), ("status", "200")))
COUNTED_S = 1.0  # the gateway's own round of handing its counts over (usage_retry_s)
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


def settled(stack: ProductionStack) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What is told once the calls of before are counted: nobody calls, and for longer than it takes to count
    the number has stood still."""
    told, since = scrape(stack), time.monotonic()

    def stands() -> bool:
        nonlocal told, since
        now = scrape(stack)
        if now.get(CALLS) != told.get(CALLS):
            since = time.monotonic()
        told = now
        return time.monotonic() - since > 3 * COUNTED_S

    until(stands, "the calls of before are counted")
    return told


def test_whichever_process_answers_it_is_the_sum_over_all(production: ProductionStack) -> None:
    """Calls go to two gateways, pages and scrapes to two others, in turn."""
    before = settled(production)
    for _ in range(4):
        assert production.ask()
        with urllib.request.urlopen(f"{production.base_url}/healthz", timeout=10) as page:
            assert page.status == 200

    def complete() -> bool:
        # The calls are counted within a second of their last byte; both processes must say the same then.
        found = [scrape(production) for _ in range(4)]
        return all(
            one.get(CALLS, 0) == before.get(CALLS, 0) + 4 and one.get(PAGES, 0) >= before.get(PAGES, 0) + 4
            for one in found
        )

    until(complete, lambda: f"{before.get(CALLS)} and 4 more: {scrape(production).get(CALLS)}")
    found = scrape(production)
    assert ("heteroflow_gateway_table_version", ()) in found
    assert found[("heteroflow_hints_dropped_total", ())] >= 0


def test_every_server_process_takes_part(production: ProductionStack) -> None:
    held = list((production.data_dir / "metrics").glob("slot_*.lock"))
    assert len(held) >= 10  # two each of wsgi, asgi, worker, scheduler and beat
