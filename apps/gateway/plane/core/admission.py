"""Who may call what: bearer key, expiry, suspension, scopes, allowed models (GW-02, TEN-01, TEN-06).

Decides on plain values; never looks anything up outside the table it is given. Only the sha256
of a key leaves this module.
"""

import hashlib
from collections.abc import Mapping

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.choice import NO_PINS, Pins
from apps.routing.table import PIN, Key, Route, Table

MAX_KEY_CHARS = 512
VERSION_HEADER = b"x-heteroflow-version"
BACKEND_HEADER = b"x-heteroflow-backend"
SESSION_HEADER = b"x-heteroflow-session"


def hash_bearer(authorization: bytes | None) -> str:
    """The sha256 hex of the key in an Authorization header.

    Raises CallError 401 when there is no bearer key or it can't be one (TEN-06).
    """
    if not authorization:
        raise errors.missing_key()
    scheme, _, secret = authorization.strip().partition(b" ")
    secret = secret.strip()
    if scheme.lower() != b"bearer" or not secret:
        raise errors.missing_key()
    if len(secret) > MAX_KEY_CHARS or not secret.isascii() or b" " in secret:
        raise errors.invalid_key()
    return hashlib.sha256(secret).hexdigest()


def has_expired(key: Key, now: float) -> bool:
    """`now` in epoch seconds."""
    return key.expires_at is not None and key.expires_at <= now


def require_live(key: Key | None, *, now: float) -> Key:
    """The key, if it is there and not expired; the instant of expiry counts as expired.

    Raises CallError 401, with one text for all cases. `now` in epoch seconds.
    """
    if key is None or has_expired(key, now):
        raise errors.invalid_key()
    return key


def find_refusal(key: Key, scope: str) -> errors.CallError | None:
    """403 with the reason while the key's tenant is suspended (TEN-01), and where the key may not do what
    `scope` stands for (TEN-06); None = it may."""
    if key.suspended is not None:
        return errors.suspended(key.suspended)
    if scope not in key.scopes:
        return errors.scope_missing(scope)
    return None


def find_routes(table: Table, key: Key, model: str) -> tuple[Route, ...]:
    """The active routes of a model for this key; empty = known, but nothing can serve it.

    Raises CallError 404 for a model that the tenant doesn't have or the key may not call.
    """
    routes = table.routes.get(key.tenant_id, {}).get(model)
    if routes is None or not _allowed(key, model):
        raise errors.model_not_found(model)
    return routes


def refuse_unready(routes: tuple[Route, ...], model: str, retry_after_s: int) -> errors.CallError:
    """What a caller is told of a model without a ready replica: when to come again, or that none will be
    there unless somebody wakes it (GW-02)."""
    if routes and all(route.asleep for route in routes):
        return errors.all_asleep(model)
    return errors.no_backend(model, retry_after_s)


def read_pins(headers: Mapping[bytes, bytes], key: Key) -> Pins:
    """What the headers say of the backend (GW-03, GW-06). `headers`: names in lower case.

    Raises CallError 403 for a version or a backend where the key may not choose them.
    """
    version, backend = headers.get(VERSION_HEADER, b""), headers.get(BACKEND_HEADER, b"")
    session = headers.get(SESSION_HEADER, b"")
    if not (version or backend or session):
        return NO_PINS
    pins = Pins(*(value.decode("latin-1") for value in (version, backend, session)))
    require_pin(key, pins)
    return pins


def require_pin(key: Key, pins: Pins) -> None:
    """Raises CallError 403 for a version or a backend where the key may not choose them."""
    if (pins.version or pins.backend) and PIN not in key.scopes:
        raise errors.pin_not_allowed((VERSION_HEADER if pins.version else BACKEND_HEADER).decode())


def list_models(table: Table, key: Key) -> list[str]:
    """Names that this key may call, sorted; those without a backend too (GW-01)."""
    return sorted(model for model in table.routes.get(key.tenant_id, {}) if _allowed(key, model))


def _allowed(key: Key, model: str) -> bool:
    return key.allowed_models is None or model in key.allowed_models
