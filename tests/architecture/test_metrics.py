"""Rules, dashboard and page name metrics that exist, and the page names all of them (OPS-04, OPS-09)."""

import json
import re
from collections.abc import Iterable, Iterator
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

import apps.core.hints
import apps.core.request_metrics
import apps.gateway.plane.io.meters
import apps.ops.metrics  # noqa: F401 - all metrics are there once these are imported
from agent.contract.states import Observed
from agent.link.metrics import NodeMetrics
from apps.core.clock import utc_now
from apps.ops.row_metrics import RowMetrics, read_rows
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-04", "OPS-09")]
NAME = re.compile(r"\bheteroflow_[a-z_]+")
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}


def families() -> Iterator[Metric]:
    heartbeat = SimpleNamespace(
        outcomes={"answered": 1, "refused": 0, "no_answer": 0}, answered_at=0.0, cards=(0, False)
    )
    agent = NodeMetrics(
        version="1",
        heartbeat=heartbeat,  # type: ignore[arg-type]
        reports=[],  # type: ignore[arg-type]
        observed=lambda: [Observed.READY],
        door={"open": 1},
    )
    sources: Iterable[Iterable[Metric]] = (
        REGISTRY.collect(),
        RowMetrics().collect(),
        read_rows(utc_now()),
        agent.collect(),
    )
    for source in sources:
        yield from (family for family in source if family.name.startswith("heteroflow_"))


def known() -> set[str]:
    return {family.name + suffix for family in families() for suffix in SUFFIXES[family.type]}


def rules() -> list[dict[str, object]]:
    text = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, object]]:
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_rules_are_whole_and_name_what_exists() -> None:
    found = rules()
    assert len(found) > 10
    for rule in found:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys(), rule
        names = set(NAME.findall(str(rule["expr"])))
        assert names and names <= known(), f"{rule['alert']}: {names - known()}"


def test_the_dashboard_names_what_exists() -> None:
    found = panels()
    assert len(found) > 15
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        names = {name for target in panel["targets"] for name in NAME.findall(target["expr"])}  # type: ignore[attr-defined]
        assert names and names <= known(), f"{panel['title']}: {names - known()}"


def test_the_page_names_each_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(NAME.findall(page))
    bases = {family.name + ("_total" if family.type == "counter" else "") for family in families()}
    assert sorted(bases - named) == []
    assert sorted(named - bases - known()) == []
