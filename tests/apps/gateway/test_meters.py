"""What the gateway counts: each call once, by its ending; models by name, callers not at all (OPS-04)."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from apps.gateway.plane.io import meters
from tests.fakes.gateway import BODY, MODEL, SECRET, RunningGateway, until
from tests.fakes.mock_engine import MockEngine

pytestmark = pytest.mark.req("OPS-04")


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"heteroflow_gateway_{name}", labels) or 0.0


async def test_a_call_is_counted_with_its_tokens_and_times(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    calls = value("requests_total", ending="completed", status="200")
    tokens = value("tokens_total", model=MODEL, kind="completion")
    first = value("time_to_first_token_seconds_count", stream="yes")
    async with http.post(f"{gateway.url}/v1/chat/completions", json={**BODY, "stream": True}) as response:
        await response.read()
    (record,) = gateway.records()
    await until(lambda: value("requests_total", ending="completed", status="200") == calls + 1)
    assert value("tokens_total", model=MODEL, kind="completion") == tokens + record.completion_tokens > tokens
    assert value("time_to_first_token_seconds_count", stream="yes") == first + 1
    await until(lambda: value("in_flight", model=MODEL) == 0)
    await until(lambda: value("table_version") == 1)


async def test_strangers_and_what_they_send_make_no_series(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    before = value("requests_total", ending="turned_away", status="401")
    unknown = value("key_asks_total", outcome="unknown")
    wrong = {"Authorization": "Bearer sk-nobody"}
    async with http.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=wrong) as response:
        assert response.status == 401
    async with http.post(
        f"{gateway.url}/v1/chat/completions", json={**BODY, "model": "made-up-by-a-caller"}
    ) as response:
        assert response.status == 404
    assert value("requests_total", ending="turned_away", status="401") == before + 1
    assert value("key_asks_total", outcome="unknown") == unknown + 1
    labels = [sample.labels for family in REGISTRY.collect() for sample in family.samples]
    assert "made-up-by-a-caller" not in str(labels)


async def test_a_callers_id_is_carried_on_to_the_engine_and_no_secret_is(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    address = f"{gateway.url}/v1/chat/completions"
    async with http.post(address, json=BODY, headers={"X-Request-ID": "batch-7.call-1"}) as response:
        given = response.headers["X-Request-ID"]
    assert given.startswith("batch-7.call-1.") and len(given) <= 64
    assert engine.seen_headers[-1]["X-Request-ID"] == given == gateway.records()[-1].request_id
    for unfit in (SECRET, "short", "x" * 41, "two words!"):
        async with http.post(address, json=BODY, headers={"X-Request-ID": unfit}) as response:
            assert response.headers["X-Request-ID"].startswith("req-")


def test_models_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MODELS_MAX", 2)
    monkeypatch.setattr(meters, "_named", set())
    assert [meters.label_of(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


ENDS_MS = [round(bound * 1000) for bound in meters.SECONDS]


@given(st.lists(st.one_of(st.sampled_from(ENDS_MS), st.integers(0, 700_000)), max_size=40), st.integers(1, 9))
def test_times_counted_at_once_are_where_each_alone_would_be(times_ms: list[int], few: int) -> None:
    def make() -> Histogram:
        return Histogram("t", "t", ["stream"], buckets=meters.SECONDS, registry=CollectorRegistry())

    def told(histogram: Histogram) -> dict[str, float]:
        (family,) = histogram.collect()
        names = ("_bucket", "_count", "_sum")
        said = [sample for sample in family.samples if sample.name.endswith(names)]
        return {sample.name + sample.labels.get("le", ""): round(sample.value, 6) for sample in said}

    alone, at_once = make(), make()
    times = meters._Times(at_once)
    for at in range(0, len(times_ms), few):
        times.add_all("no", times_ms[at : at + few])
    for one in times_ms:
        alone.labels("no").observe(one / 1000)
    times.give()
    assert told(at_once) == told(alone)
