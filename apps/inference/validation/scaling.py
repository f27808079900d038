"""scale_policy (SCALE-01) and schedule_window (WIN-01): their shapes and ranges."""

import re
from typing import Any
from zoneinfo import available_timezones

from apps.core.bodies import Fields

METRICS = (
    "requests_per_second",
    "requests_in_flight",
    "queue_length",
    "gpu_utilization",
    "kv_cache_usage",
    "time_to_first_token",
)
ACTIONS = ("pause", "scale", "stop")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def read_scale_policy(fields: Fields) -> dict[str, Any]:
    """{enabled, metrics[{name, target_value}]}; an enabled one needs a metric."""
    section = fields.section("scale_policy")
    if section is None:
        return {}
    enabled = section.boolean("enabled")
    metrics: list[dict[str, Any]] = []
    for metric in section.objects("metrics", limit=len(METRICS)):
        name = metric.choice("name", METRICS)
        target = metric.number("target_value", 0.001, 1e9)
        for needed in ("name", "target_value"):
            if not metric.sent(needed):
                metric.refuse(needed, "required")
        if any(name and name == other["name"] for other in metrics):
            metric.refuse("name", "duplicate", name)
        metric.close()
        metrics.append({"name": name, "target_value": target})
    if enabled and not metrics and not section.body.get("metrics"):
        section.refuse("metrics", "required")
    section.close()
    return {"enabled": enabled, "metrics": metrics}


def read_schedule_window(fields: Fields) -> dict[str, Any]:
    """{enabled, timezone, weekdays 1 (Monday) to 7, start, end as HH:MM, action, replicas}."""
    section = fields.section("schedule_window")
    if section is None:
        return {}
    enabled = section.boolean("enabled")
    timezone = section.text("timezone", limit=50, default="UTC") or "UTC"
    if timezone not in available_timezones():
        section.refuse("timezone", "bad_time_zone", timezone)
    weekdays = _read_weekdays(section)
    window = {
        "enabled": enabled,
        "timezone": timezone,
        "weekdays": weekdays or [1, 2, 3, 4, 5, 6, 7],
        "start": _read_clock(section, "start", enabled),
        "end": _read_clock(section, "end", enabled),
        "action": section.choice("action", ACTIONS, "pause"),
        "replicas": section.integer("replicas", 0, 1024),
    }
    if window["action"] == "scale" and window["replicas"] is None and not section.sent("replicas"):
        section.refuse("replicas", "required")
    section.close()
    return window


def _read_weekdays(section: Fields) -> list[int]:
    good: list[int] = []
    for index, day in enumerate(section.array("weekdays", limit=7)):
        if isinstance(day, bool) or not isinstance(day, int) or not 1 <= day <= 7:
            section.refuse(f"weekdays[{index}]", "out_of_range", day, min=1, max=7)
        elif day in good:
            section.refuse(f"weekdays[{index}]", "duplicate", day)
        else:
            good.append(day)
    return sorted(good)


def _read_clock(section: Fields, name: str, required: bool) -> str:
    text = section.text(name, limit=5, required=required)
    if text and not _CLOCK.fullmatch(text):
        section.refuse(name, "bad_time_of_day", text)
    return text
