"""Shapes of this app's REST queries and answers."""

from datetime import date, timedelta
from typing import Any

from rest_framework import serializers

from apps.core.errors import FieldError, Invalid, Value
from apps.core.serializers import read_query
from apps.usage.period import settle_days
from apps.usage.sums import By, Only

HOURLY_DAYS = 8
ONLY = ("tenant", "member", "key", "model")


class DaysQuery(serializers.Serializer[Any]):
    """Days of UTC, both included; without them the last thirty."""

    to = serializers.DateField(required=False)

    def get_fields(self) -> Any:
        fields = super().get_fields()
        fields["from"] = serializers.DateField(required=False)  # a word of the language, so no attribute
        return fields


def read_days(params: Any, today: date) -> tuple[date, date]:
    """(first, last). Raises Invalid 400 for what is no day, days in the wrong order, or too many."""
    given = read_query(DaysQuery(data=params))
    return settle_days(given.get("from"), given.get("to"), today)


class ExportQuery(DaysQuery):
    """Which of them: all in sight where nothing is said."""

    tenant = serializers.CharField(max_length=50, required=False, help_text="its slug")
    member = serializers.CharField(max_length=150, required=False, help_text="a user name")
    key = serializers.CharField(max_length=40, required=False, help_text="its id")
    model = serializers.CharField(max_length=200, required=False)


class UsageQuery(ExportQuery):
    by = serializers.ChoiceField(
        choices=[by.value for by in By],
        required=False,
        help_text="`model` without it; `hour`: 8 days at most, the last 8 without `from`",
    )


def read_usage(query_class: type[ExportQuery], params: Any, today: date) -> tuple[date, date, Only, By]:
    """What is asked for. Raises Invalid 400."""
    given = read_query(query_class(data=params))
    first, last = settle_days(given.get("from"), given.get("to"), today)
    by = By(given.get("by", By.MODEL))
    if by is By.HOUR and (last - first).days >= HOURLY_DAYS:
        earliest = last - timedelta(days=HOURLY_DAYS - 1)
        if "from" not in given:
            return earliest, last, _only(given), by
        bounds: dict[str, Value] = {"min": earliest.isoformat(), "max": last.isoformat()}
        raise Invalid([FieldError("from", "out_of_range", first.isoformat(), bounds)])
    return first, last, _only(given), by


def _only(given: dict[str, Any]) -> Only:
    return Only(**{name: given[name] for name in ONLY if name in given})


class UseShape(serializers.Serializer[Any]):
    value = serializers.CharField(help_text="a model, key id, user name, group id, tenant, or its beginning")
    key_prefix = serializers.CharField(help_text="by key: of the value that was used; else empty")
    requests = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="those that did not complete")
    estimated = serializers.IntegerField(help_text="those whose tokens the engine did not report")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    duration_ms = serializers.IntegerField(help_text="of all requests together")


class GroupTimeShape(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    member = serializers.CharField()
    task_type = serializers.CharField()
    group_id = serializers.CharField()
    group = serializers.CharField()
    running_s = serializers.FloatField(help_text="seconds of a whole card: starting, serving, ending")
    sleeping_s = serializers.FloatField()
    lent_s = serializers.FloatField(help_text="asleep, its cards lent to other work")
