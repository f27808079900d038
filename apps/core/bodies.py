"""Reads a JSON object field by field and gathers every rule that it breaks.

For bodies whose fields depend on each other; where each field stands for itself `serializers.py` is
shorter. Owns the generic rules: types, ranges, lengths, characters, unknown fields. Never knows what a
field is for, never stops at the first error, never echoes a secret or more than a glimpse of a value.
"""

import json
import math
import unicodedata
from collections.abc import Collection, Iterator
from typing import Any

from django.utils.translation import gettext as _
from rest_framework.request import Request

from apps.core.errors import FieldError, Refusal, Value, field_path

MAX_ERRORS = 100  # in one answer; a body of nonsense needs no longer list
_SHOWN = 200  # characters of a value that are echoed
_WHOLE = 2**53  # above it JSON readers round, so it is echoed as text
_FORBIDDEN = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def show(value: object) -> Value:
    """A value as it may be echoed: scalars, texts cut short, anything else as a glimpse of its JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _WHOLE else f"{str(value)[:40]}..."
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def has_bad_characters(text: str, *, lines: bool = False) -> bool:
    """Whether a text holds control characters, NUL, lone surrogates or direction overrides.
    `lines` allows tabs and line breaks."""
    allowed = "\t\n\r" if lines else ""
    return any((unicodedata.category(c) in _FORBIDDEN and c not in allowed) or c in _BIDI for c in text)


def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries, empty where it has no body. Raises Refusal."""
    if not isinstance(request.data, dict):
        raise Refusal("not_an_object")
    return request.data


class Fields:
    """One JSON object under reading. Each method reads one field, notes what is wrong with it and
    returns a usable value all the same; null counts as absent. `close()` refuses what nobody read."""

    def __init__(self, body: dict[str, Any], errors: list[FieldError], path: str = "") -> None:
        self.body = body
        self.errors = errors
        self.path = path
        self.known: set[str] = set()

    def at(self, name: str) -> str:
        """The path of a field of this object."""
        return field_path(self.path, name)

    def refuse(self, name: str, code: str, value: object = None, **params: Value) -> None:
        """Note a broken rule of a field of this object."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(FieldError(self.at(name), code, show(value), params))

    def sent(self, name: str) -> bool:
        """Whether a field came with a value; reading it so makes it known."""
        self.known.add(name)
        return self.body.get(name) is not None

    def wrong_type(self, name: str, expected: str, *, secret: bool = False) -> None:
        self.refuse(name, "wrong_type", None if secret else self.body.get(name), expected=expected)

    def text(
        self, name: str, *, limit: int, required: bool = False, default: str = "", strip: bool = True
    ) -> str:
        """A text without control characters; blank is refused where it is required."""
        if not self.sent(name):
            if required:
                self.refuse(name, "required")
            return default
        value = self.body[name]
        if not isinstance(value, str):
            self.wrong_type(name, _("a text"))
            return default
        value = value.strip() if strip else value
        if has_bad_characters(value):
            self.refuse(name, "bad_characters", value)
        elif len(value) > limit:
            self.refuse(name, "too_long", value, max=limit)
        elif required and not value:
            self.refuse(name, "blank", value)
        else:
            return value
        return default

    def secret(self, name: str, *, limit: int) -> str:
        """A required text whose value is never echoed."""
        before = len(self.errors)
        value = self.text(name, limit=limit, required=True, strip=False)
        for index in range(before, len(self.errors)):
            error = self.errors[index]
            self.errors[index] = FieldError(error.field, error.code, None, error.params)
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """A whole number from low to high; true and 1.0 are none."""
        if not self.sent(name):
            return default
        value = self.body[name]
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong_type(name, _("a whole number"))
            return default
        whole: int | None = self._in_range(name, value, low, high, default)
        return whole

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float | None:
        """A number from low to high."""
        if not self.sent(name):
            return default
        value = self.body[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong_type(name, _("a number"))
            return default
        number: float | None = self._in_range(name, value, low, high, default)
        return number

    def _in_range(self, name: str, value: Any, low: Any, high: Any, default: Any) -> Any:
        if low <= value <= high:
            return value
        self.refuse(name, "out_of_range", value, min=low, max=high)
        return default

    def boolean(self, name: str, default: bool = False) -> bool:
        if not self.sent(name):
            return default
        value = self.body[name]
        if isinstance(value, bool):
            return value
        self.wrong_type(name, _("true or false"))
        return default

    def choice(self, name: str, options: Collection[str], default: str = "") -> str:
        """One of the options; an empty text counts as absent."""
        if not self.sent(name) or self.body[name] == "":
            return default
        value = self.body[name]
        if isinstance(value, str) and value in options:
            return value
        self.refuse(name, "not_a_choice", value, choices=", ".join(options))
        return default

    def section(self, name: str, *, secret: bool = False) -> "Fields | None":
        """An object inside this one, or None where it is absent or none. `secret`: what stands in its
        place is not echoed."""
        if not self.sent(name):
            return None
        value = self.body[name]
        if not isinstance(value, dict):
            self.wrong_type(name, _("an object"), secret=secret)
            return None
        return Fields(value, self.errors, self.at(name))

    def array(self, name: str, *, limit: int, secret: bool = False) -> list[Any]:
        """A list of at most `limit` items, as they came. `secret` as in `section`."""
        if not self.sent(name):
            return []
        value = self.body[name]
        if not isinstance(value, list):
            self.wrong_type(name, _("a list"), secret=secret)
            return []
        if len(value) > limit:
            self.refuse(name, "too_many", len(value), max=limit)
            return []
        return value

    def objects(self, name: str, *, limit: int) -> "Iterator[Fields]":
        """The objects of a list; an item that is none is refused by its place."""
        for index, item in enumerate(self.array(name, limit=limit)):
            place = f"{name}[{index}]"
            if isinstance(item, dict):
                yield Fields(item, self.errors, self.at(place))
            else:
                self.refuse(place, "wrong_type", item, expected=_("an object"))

    def texts(self, name: str, *, limit: int, each: int, lines: bool = False) -> list[str]:
        """A list of texts of at most `each` characters. Values are not echoed: commands hold secrets."""
        good = []
        for index, item in enumerate(self.array(name, limit=limit, secret=True)):
            if self.takes(f"{name}[{index}]", item, limit=each, lines=lines):
                good.append(item)
        return good

    def takes(self, place: str, item: object, *, limit: int, lines: bool = False) -> bool:
        """Whether an item of a list or map is a text as it should be; noted without its value if not."""
        if not isinstance(item, str):
            self.refuse(place, "wrong_type", expected=_("a text"))
        elif has_bad_characters(item, lines=lines):
            self.refuse(place, "bad_characters")
        elif len(item) > limit:
            self.refuse(place, "too_long", max=limit)
        else:
            return True
        return False

    def close(self) -> None:
        """Refuse every field that nobody read, by name; values of strangers are not echoed."""
        for name in self.body:
            if name not in self.known:
                self.refuse(str(show(name)), "unknown_field")
