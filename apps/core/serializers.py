"""Bodies that a serializer describes, read strictly: one shape for the schema and for the refusals.

For bodies whose fields stand for themselves; `bodies.py` reads those with rules between fields. Owns how
the framework's field errors become codes of `texts.py`, with field, value and rule. Unknown fields are
refused by name; a secret's value is never echoed.
"""

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request

from apps.core.bodies import show
from apps.core.errors import FieldError, Invalid, Value, field_path

_EXPECTED = {
    serializers.BooleanField: _("true or false"),
    serializers.IntegerField: _("a whole number"),
    serializers.FloatField: _("a number"),
    serializers.DateTimeField: "a moment in ISO 8601 with its offset, such as 2027-01-31T12:00:00Z",
    serializers.DateField: _("a day, such as 2027-01-31"),
    serializers.DictField: _("an object"),
    serializers.ListField: _("a list"),
    serializers.Serializer: _("an object"),
    serializers.CharField: _("a text"),
}


class Body(serializers.Serializer):  # type: ignore[type-arg]
    """The body of one kind of request. `Body.read(request)` gives the checked values."""

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        """The values that were sent, checked; absent optional fields stay absent.

        Raises Invalid naming every field that breaks a rule.
        """
        return cls.check(request.data)

    @classmethod
    def check(cls, body: Any) -> dict[str, Any]:
        """As `read`, for a parsed body."""
        form = cls(data=body)
        valid = form.is_valid()
        errors = [] if valid else list(_walk(form, form.errors, body, ""))
        errors += list(_strangers(form, body, ""))
        if errors:
            raise Invalid(errors)
        return dict(form.validated_data)


def read_query(form: Any) -> dict[str, Any]:
    """The values of a form over a query's parameters; strange ones are passed over, as in any address.

    Raises Invalid naming every parameter that breaks a rule.
    """
    if not form.is_valid():
        raise Invalid(list(_walk(form, form.errors, form.initial_data, "")))
    return dict(form.validated_data)


_CAME_AS: dict[type, type] = {
    serializers.CharField: str,
    serializers.ListField: list,
    serializers.DictField: dict,
    serializers.Serializer: dict,
}


def _strangers(form: Any, body: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        field = form.fields.get(name)
        if field is None:
            yield FieldError(field_path(path, str(show(name))), "unknown_field")
        elif isinstance(field, serializers.Serializer):
            yield from _strangers(field, value, field_path(path, name))


def _walk(field: Any, errors: Any, sent: Any, path: str) -> Iterator[FieldError]:
    """Field errors of a form as ours; `errors` is the framework's tree beside what was `sent`."""
    if isinstance(errors, dict):
        for name, inner in errors.items():
            if name == "non_field_errors":
                yield from _walk(field, inner, sent, path)
                continue
            yield from _walk(_inner(field, name), inner, _sent(sent, name), field_path(path, name))
        return
    for error in errors:
        if isinstance(error, dict | list):
            yield from _walk(field, error, sent, path)
        else:
            yield _told(field, error, sent, path)


def _told(field: Any, error: Any, sent: Any, path: str) -> FieldError:
    value, code = _show(field, sent), error.code
    rules: dict[str, tuple[str, dict[str, Value]]] = {
        "required": ("required", {}),
        "null": ("required", {}),
        "blank": ("blank", {}),
        "max_length": ("too_long", {"max": getattr(field, "max_length", None)}),
        "null_characters_not_allowed": ("bad_characters", {}),
        "surrogate_characters_not_allowed": ("bad_characters", {}),
        "invalid_choice": ("not_a_choice", {"choices": ", ".join(map(str, getattr(field, "choices", ())))}),
    }
    if code in ("min_value", "max_value"):
        bounds: dict[str, Value] = {"min": field.min_value, "max": field.max_value}
        return FieldError(path, "out_of_range", value, bounds)
    if code in rules:
        return FieldError(path or "body", rules[code][0], value, rules[code][1])
    if code in ("invalid", "not_a_list", "not_a_dict", "date", "make_aware", "max_string_length"):
        for kind, expected in _EXPECTED.items():
            # A text, list or object that came as one breaks some other rule of its field.
            if isinstance(field, kind) and not isinstance(sent, _CAME_AS.get(kind, ())):
                return FieldError(path or "body", "wrong_type", value, {"expected": str(expected)})
    return FieldError(path or "body", "validation", value, {"message": str(error)})


def _inner(field: Any, name: Any) -> Any:
    if isinstance(field, serializers.Serializer):
        return field.fields.get(name)
    return getattr(field, "child", None)


def _sent(value: Any, name: Any) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and isinstance(name, int) and name < len(value):
        return value[name]
    return None


def _show(field: Any, value: Any) -> Value:
    """A scalar as it may be echoed; nothing of a secret, an object or a list."""
    return None if getattr(field, "write_only", False) or isinstance(value, dict | list) else show(value)
