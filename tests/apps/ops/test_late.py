"""When a loop is late is one figure, for readiness, alerts, console and Prometheus (OPS-04, OPS-09)."""

from datetime import timedelta

import pytest
import yaml
from django.test import Client

from apps.console import dashboard
from apps.core import ticks
from apps.core.clock import utc_now
from apps.core.models import TickRun
from apps.ops import conditions, row_metrics
from tests.stack import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-04", "OPS-09")]
WHOLE_LATE = 100.0  # seconds on both sides of the figure, so that a slow machine moves nothing over it


def by_readiness(client: Client) -> set[str]:
    return set(client.get("/readyz/loops").json()["late"])


def by_alerts() -> set[str]:
    now = utc_now()
    found = conditions.read_loops(now, now - timedelta(days=30))
    return {one.object_id for one in found if one.code == "loop_late"}


def by_console() -> set[str]:
    return {loop["name"] for loop in dashboard._loops(utc_now()) if loop["late"]}


def by_prometheus() -> set[str]:
    """The rule, worked out over what a scrape says now."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == "HeteroFlowLoopLate")
    left, sign, right = rule["expr"].split()
    assert sign == ">"
    values = {
        family.name: {sample.labels["loop"]: sample.value for sample in family.samples}
        for family in row_metrics.read_rows(utc_now())
        if family.name in (left, right)
    }
    return {name for name, age_s in values[left].items() if age_s > values[right][name]}


def test_all_who_judge_agree(client: Client, settings) -> None:
    settings.LOOP_LATE_SLACK_S = 2 * WHOLE_LATE
    names = sorted(ticks.REGISTRY)
    assert len(names) > 5
    late = set(names[::2])
    for name in names:
        off = WHOLE_LATE if name in late else -WHOLE_LATE
        ended = utc_now() - timedelta(seconds=ticks.REGISTRY[name].late_after_s + off)
        TickRun.objects.create(name=name, outcome="done", finished_at=ended)
    assert by_readiness(client) == by_alerts() == by_console() == by_prometheus() == late


def test_the_figure_is_of_the_settings(settings) -> None:
    settings.SCHEDULING_PERIOD_S, settings.LOOP_LATE_PERIODS, settings.LOOP_LATE_SLACK_S = 7.0, 4.0, 2.5
    assert ticks.REGISTRY["scheduling.place"].late_after_s == 30.5
    # A run may take its whole budget, and a dead holder's lease has to run out, before the next one ends.
    settings.LOOP_LATE_SLACK_S = 15.0
    longest = max(settings.SCHEDULING_BUDGET_S, settings.WEBHOOK_BUDGET_S + settings.WEBHOOK_TIMEOUT_S)
    assert longest + settings.TICK_LEASE_TTL_S < settings.LOOP_LATE_SLACK_S
