"""What a gateway key may be limited to, checked (TEN-06): scopes, models, addresses, expiry, overlap.

Owns the rules of the fields alone; who may set them is `keys.py`'s. Touches no row.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core.errors import FieldError, Invalid
from apps.tenants.models import KeyScope

MODELS_MAX = 200
ADDRESSES_MAX = 50
NAME_MAX = 200


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
