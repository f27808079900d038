"""Shapes of this app's REST queries and answers."""

from datetime import date, timedelta
from typing import Any

from rest_framework import serializers

from apps.core.errors import FieldError, Invalid

LONGEST_DAYS = 366
USUAL_DAYS = 30


class DaysQuery(serializers.Serializer[Any]):
    """Days of UTC, both included; without them the last thirty."""

    to = serializers.DateField(required=False)

    def get_fields(self) -> Any:
        fields = super().get_fields()
        fields["from"] = serializers.DateField(required=False)  # a word of the language, so no attribute
        return fields


def read_days(params: Any, today: date) -> tuple[date, date]:
    """(first, last). Raises Invalid 400 for what is no day, days in the wrong order, or too many."""
    query = DaysQuery(data=params)
    query.is_valid(raise_exception=True)
    last: date = query.validated_data.get("to") or today
    earliest = date.min + timedelta(days=LONGEST_DAYS)
    usual = max(last, earliest) - timedelta(days=USUAL_DAYS - 1)
    first: date = query.validated_data.get("from") or usual
    if not 0 <= (last - first).days < LONGEST_DAYS:
        bounds: dict[str, Any] = {
            "min": (max(last, earliest) - timedelta(days=LONGEST_DAYS - 1)).isoformat(),
            "max": last.isoformat(),
        }
        raise Invalid([FieldError("from", "out_of_range", first.isoformat(), bounds)])
    return first, last


class GroupTimeShape(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    member = serializers.CharField()
    task_type = serializers.CharField()
    group_id = serializers.CharField()
    group = serializers.CharField()
    running_s = serializers.FloatField(help_text="seconds of a whole card: starting, serving, ending")
    sleeping_s = serializers.FloatField()
    lent_s = serializers.FloatField(help_text="asleep, its cards lent to other work")
