"""The audit trail (TEN-08): who did what to which object, when, from where, before and after.

Owns the one way in: `note`, called in the transaction of the act, so that act and row are one or none.
Rows are only ever added. Never holds a secret: values of secret fields become ***, and whatever looks
like a credential in any text does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

from django.db import connection, models, transaction

from apps.core.clock import utc_now
from apps.core.masking import mask
from apps.core.models import AuditEntry
from apps.core.requests import client_address, request_id

HIDDEN = "***"
_SECRET_WORDS = ("password", "secret", "sha256", "token_value", "credential")
_SECRET_NAMES = frozenset({"env", "key", "token", "api_key_plain", "authorization", "session_key"})
_LONGEST_TEXT = 500
_LONGEST_NAME = 200
_MOST_ITEMS = 100


class Actor(Protocol):
    """Whoever acts: a person, a node, a loop. `public_id` is empty for what is no person."""

    @property
    def name(self) -> str: ...
    @property
    def public_id(self) -> str: ...
    @property
    def is_operator(self) -> bool: ...


@dataclass(frozen=True)
class Someone:
    """An actor by name only: whoever is not signed in, or a machine."""

    name: str
    public_id: str = ""
    is_operator: bool = False


@dataclass(frozen=True)
class Tenancy:
    """The tenant that an object belongs to, as text; both empty for what belongs to none."""

    public_id: str = ""
    name: str = ""


NO_TENANT = Tenancy()


def note(
    actor: Actor,
    verb: str,
    *,
    kind: str,
    public_id: str = "",
    name: str = "",
    tenant: Tenancy = NO_TENANT,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add the row of one act. `verb` is a code with a sentence (`did_VERB` of texts); `before` and
    `after` hold the changed fields alone.

    Raises TransactionManagementError outside of a transaction, where a row could outlive its act.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("an act is noted inside transaction.atomic() only")
    AuditEntry.objects.create(
        at=utc_now(),
        actor_id=actor.public_id,
        actor=_cut(actor.name, 150),
        by_operator=actor.is_operator,
        verb=verb,
        object_kind=kind,
        object_id=public_id,
        object_name=_cut(mask(name), _LONGEST_NAME),
        tenant_id=tenant.public_id,
        tenant=tenant.name,
        address=_cut(client_address.get(), 45),
        request_id=_cut(request_id.get(), 64),
        before=clean(before or {}),
        after=clean(after or {}),
    )


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `new` that differ from `old`: as they were, and as they are."""
    names = [name for name in new if old.get(name) != new[name]]
    return {name: old.get(name) for name in names}, {name: new[name] for name in names}


def picture(row: models.Model, *names: str) -> dict[str, Any]:
    """Fields of a row as they may be compared; all of its own columns where none is named."""
    wanted = names or tuple(field.attname for field in row._meta.concrete_fields)
    return {name: getattr(row, name) for name in wanted}


def clean(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as the row keeps them: JSON, cut short, without secrets."""
    some = list(fields.items())[:_MOST_ITEMS]
    return {_cut(str(name), 100): _shown(str(name), value) for name, value in some}


def _is_secret(name: str) -> bool:
    lowered = name.lower()
    return lowered in _SECRET_NAMES or any(word in lowered for word in _SECRET_WORDS)


def _shown(name: str, value: Any) -> Any:
    if _is_secret(name):
        return HIDDEN if value not in (None, "", {}, []) else value
    if isinstance(value, Mapping):
        return clean(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return [_shown("", item) for item in items[:_MOST_ITEMS]]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, date):
        return value.isoformat()
    return _cut(mask(str(value)), _LONGEST_TEXT)


def _cut(text: str, longest: int) -> str:
    """Short enough for its column, and without what no database keeps."""
    return "".join(c for c in text if c.isprintable())[:longest]
