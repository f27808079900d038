"""Refusals as codes: every service raises Refusal, the edge turns it into the caller's shape.

Owns the exception types and how a field is named. `texts.py` has the sentences, `problems.py` the answer.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from apps.core.masking import mask

Value = str | int | float | bool | None


@dataclasses.dataclass(frozen=True)
class FieldError:
    """One field that breaks one rule. `field` is a path such as `task.ports[0].host_port`; `value` is
    what was sent (None where it is a secret or absent)."""

    field: str
    code: str
    value: Value = None
    params: dict[str, Value] = dataclasses.field(default_factory=dict)


def field_path(parent: str, name: str | int) -> str:
    """The path of a field of an object, or by number of an item of a list."""
    if isinstance(name, int):
        return f"{parent}[{name}]"
    return f"{parent}.{name}" if parent else name


class Refusal(Exception):
    """An expected refusal. `status` is its HTTP status; `code` a key of `texts.TEXTS`.

    Public answers name the field, the value and the rule; never another tenant's things.
    """

    def __init__(
        self, code: str, status: int = 400, *, errors: list[FieldError] | None = None, **params: Value
    ) -> None:
        super().__init__(code)
        self.code = code
        self.status = status
        self.errors = errors or []
        self.params: dict[str, Value] = params


class Invalid(Refusal):
    """One or more fields are wrong (400)."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("invalid", 400, errors=errors)


class NotFound(Refusal):
    """No such object for this viewer (404); the same for "not there" and "not yours" (TEN-04). `field`: what
    names it, where that is not the address."""

    def __init__(self, field: str = "", name: str | None = None) -> None:
        errors = [FieldError(field, "no_such_name", _as_shown(name))] if field else None
        super().__init__("not_found", 404, errors=errors)


def _as_shown(name: str | None) -> str | None:
    """A name as it may be echoed: somebody may have pasted a key or a page there."""
    shown = mask(name or "")[:200]
    return shown if shown.isprintable() else None


@contextmanager
def named_by(field: str, name: str | None) -> Iterator[None]:
    """What is looked for inside is named by this field: its NotFound says so."""
    try:
        yield
    except NotFound:
        raise NotFound(field, name) from None


class Conflict(Refusal):
    """The name is taken or the state does not allow it (409)."""

    def __init__(self, code: str, *, errors: list[FieldError] | None = None, **params: Value) -> None:
        super().__init__(code, 409, errors=errors, **params)


class Forbidden(Refusal):
    """The viewer sees the object but their role does not allow the action (403)."""

    def __init__(self, code: str = "forbidden", **params: Value) -> None:
        super().__init__(code, 403, errors=None, **params)


class Unavailable(Refusal):
    """A part is away; try again (503). Never used for a refusal that would stay."""

    def __init__(self, code: str = "unavailable", **params: Value) -> None:
        super().__init__(code, 503, errors=None, **params)
