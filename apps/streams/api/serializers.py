"""Shapes of this app's REST answers and queries."""

from typing import Any

from rest_framework import serializers

LARGEST = 2**63 - 1


class LogQuerySerializer(serializers.Serializer[Any]):
    """`from` wins over `tail_lines`; without both the last 64 KiB are given. `to` ends the piece: alone it
    gives what lies before it."""

    attempt = serializers.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    to = serializers.IntegerField(
        required=False, min_value=0, max_value=LARGEST, help_text="Offset in bytes behind the last one."
    )
    tail_lines = serializers.IntegerField(required=False, min_value=0, max_value=100_000)

    def get_fields(self) -> Any:
        fields = super().get_fields()
        fields["from"] = serializers.IntegerField(  # a keyword, so no class attribute
            required=False, min_value=0, max_value=LARGEST, help_text="Offset in bytes of UTF-8."
        )
        return fields


class LogSerializer(serializers.Serializer[Any]):
    """Bytes [start, end) of one attempt's log. `end` is the `from` of the next question;
    `start` is above the asked one where older text is not kept any more."""

    attempt = serializers.IntegerField()
    start = serializers.IntegerField()
    end = serializers.IntegerField()
    text = serializers.CharField()
    stored_until = serializers.IntegerField(help_text="Where this attempt's log ends now.")
    attempts = serializers.ListField(child=serializers.IntegerField(), help_text="Attempts that have a log.")
