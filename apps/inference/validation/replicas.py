"""How many replicas somebody asks for: as a body of the API, or as the text of a form's field."""

from typing import Any

from apps.core.bodies import Fields
from apps.core.errors import FieldError, Invalid
from apps.inference.validation.forms import MAX_REPLICAS_LIMIT


def read_scale_body(body: dict[str, Any]) -> int:
    """The number in `{"replicas": 2}`. Raises Invalid."""
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    replicas = fields.integer("replicas", 0, MAX_REPLICAS_LIMIT)
    if not fields.sent("replicas"):
        fields.refuse("replicas", "required")
    fields.close()
    if errors or replicas is None:
        raise Invalid(errors)
    return replicas


def read_replicas(text: str) -> int:
    """The same from a form. Raises Invalid."""
    digits = text.strip()[:20]
    return read_scale_body({"replicas": int(digits) if digits.isascii() and digits.isdecimal() else text})
