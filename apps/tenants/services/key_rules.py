"""What a gateway key may be limited to, checked (TEN-06): scopes, models, addresses, expiry, overlap.

Owns the rules of the fields alone; who may set them, and whom they bind, is `keys.py`'s. Touches no row.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from apps.core.errors import FieldError, Invalid
from apps.tenants.models import KeyScope

MODELS_MAX = 200
ADDRESSES_MAX = 50
LIMITS = ("scopes", "allowed_models", "allowed_addresses", "expires_at")


def check_changes(given: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The columns that `given` sets, as they are stored; what is not in it stays. Its names: name, scopes,
    allowed_models, allowed_addresses, expires_at.

    Raises Invalid with one error a broken rule.
    """
    errors: list[FieldError] = []
    columns = dict(given)
    if "scopes" in given:
        columns["scopes"] = _scopes(given["scopes"], errors)
    if "allowed_models" in given:
        columns["allowed_models"] = _models(given["allowed_models"], errors)
    if "allowed_addresses" in given:
        columns["allowed_addresses"] = _networks(given["allowed_addresses"], errors)
    expires_at = given.get("expires_at")
    if expires_at is not None and expires_at <= now:
        errors.append(FieldError("expires_at", "not_in_future", expires_at.isoformat()))
    if errors:
        raise Invalid(errors)
    return columns


def bounds_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The limits among stored columns, as `ApiKey.bounds` keeps them; what limits nothing is left out."""
    found = {name: columns[name] for name in LIMITS if columns.get(name) is not None}
    if "expires_at" in found:
        found["expires_at"] = found["expires_at"].isoformat()
    return found


def check_within(bounds: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Raises Invalid where a column is wider than its bound."""
    errors = []
    for name, bound in bounds.items():
        if name not in columns:
            continue
        value = columns[name]
        if value is None:
            wider = [_("no limit")]
        elif name == "expires_at":
            wider = [value.isoformat()] if value > datetime.fromisoformat(bound) else []
        elif name == "allowed_addresses":
            wider = [one for one in value if not _is_part(one, bound)]
        else:
            wider = [one for one in value if one not in bound]
        if wider:
            told = bound if isinstance(bound, str) else ", ".join(bound) or "-"
            errors.append(FieldError(name, "wider_than_set", ", ".join(wider), {"bound": told}))
    if errors:
        raise Invalid(errors)


def _is_part(text: str, wholes: Iterable[str]) -> bool:
    network = ipaddress.ip_network(text)
    return any(
        network.version == whole.version and network.subnet_of(whole)  # type: ignore[arg-type]
        for whole in map(ipaddress.ip_network, wholes)
    )


def check_overlap(overlap_s: int) -> None:
    """Raises Invalid for an overlap below 0 or above KEY_OVERLAP_MAX_S, in seconds."""
    longest = settings.KEY_OVERLAP_MAX_S
    if not 0 <= overlap_s <= longest:
        bounds = {"min": 0, "max": longest}
        raise Invalid([FieldError("overlap_seconds", "out_of_range", overlap_s, bounds)])


def _scopes(given: Sequence[str], errors: list[FieldError]) -> list[str]:
    """In the list's own order, each once."""
    choices = ", ".join(KeyScope.values)
    errors += [
        FieldError("scopes", "not_a_choice", word, {"choices": choices})
        for word in given
        if word not in KeyScope.values
    ]
    if not given:
        errors.append(FieldError("scopes", "scopes_needed", None, {"choices": choices}))
    return [word for word in KeyScope.values if word in given]


def _models(given: Sequence[str] | None, errors: list[FieldError]) -> list[str] | None:
    if given is None:
        return None
    return _bounded("allowed_models", list(dict.fromkeys(given)), MODELS_MAX, errors)


def _networks(given: Sequence[str] | None, errors: list[FieldError]) -> list[str] | None:
    """As networks in their usual writing; an address alone is a network of one. None, or none: anywhere."""
    found: dict[str, None] = {}
    for text in given or ():
        try:
            found[str(ipaddress.ip_network(text.strip()))] = None
        except ValueError:
            errors.append(FieldError("allowed_addresses", "not_a_network", text[:100]))
    return _bounded("allowed_addresses", list(found), ADDRESSES_MAX, errors) or None


def _bounded(field: str, unique: list[str], most: int, errors: list[FieldError]) -> list[str]:
    if len(unique) > most:
        errors.append(FieldError(field, "out_of_range", len(unique), {"min": 0, "max": most}))
    return unique
