"""External engines: made, changed and removed by operators alone (GW-19). An engine's key rests encrypted and
is never answered, shown or noted."""

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.core import audit, versions
from apps.core.addresses import is_public, read_address
from apps.core.bodies import Fields
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.routing.models import ExternalEngine
from apps.tenants.scope import Viewer

NAME_LIMIT = 200
URL_LIMIT = 500
KEY_LIMIT = 500
Resolver = Callable[..., Sequence[Any]]
"""As socket.getaddrinfo."""


def create_external_engine(
    *, actor: Viewer, body: dict[str, Any], resolve: Resolver = socket.getaddrinfo
) -> ExternalEngine:
    """Raises Forbidden, Invalid, Conflict `name_taken`."""
    values = _read(actor, body, whole=True, resolve=resolve)
    with _unique(values), transaction.atomic():
        engine = ExternalEngine.objects.create(**values)
        hidden = {"api_key": audit.HIDDEN} if "api_key" in values else {}
        _note(actor, "create_external_engine", engine, after=values | hidden)
    return engine


def update_external_engine(
    *,
    actor: Viewer,
    engine: ExternalEngine,
    body: dict[str, Any],
    resolve: Resolver = socket.getaddrinfo,
) -> ExternalEngine:
    """Change what is sent, no more; an empty `api_key` takes the key away.

    Raises Forbidden, Invalid, Conflict `name_taken`.
    """
    values = _read(actor, body, whole=False, resolve=resolve)
    if values:
        with _unique(values), transaction.atomic():
            # The present key is not read: one that nothing opens any more can be replaced.
            present = ExternalEngine.objects.select_for_update().defer("api_key").get(pk=engine.pk)
            shown = {name: value for name, value in values.items() if name != "api_key"}
            before, after = audit.changes(audit.picture(present, *shown), shown) if shown else ({}, {})
            if "api_key" in values:
                after["api_key"] = audit.HIDDEN
            for name, value in values.items():
                setattr(present, name, value)
            if after.keys() & {"url", "engine_model", "api_key"}:
                present.revision += 1
            present.save(update_fields=[*values, "revision"])
            if after:
                _note(actor, "change_external_engine", present, before=before, after=after)
            versions.bump()
        return present
    return engine


def delete_external_engine(*, actor: Viewer, engine: ExternalEngine) -> None:
    """Remove an engine and every route to it. Raises Forbidden."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        gone = sorted(engine.routes.values_list("model_name", flat=True))
        ExternalEngine.objects.filter(pk=engine.pk).delete()
        _note(actor, "delete_external_engine", engine, before={"url": engine.url, "routes": gone})
        versions.bump()


def read_url(url: str) -> SplitResult | None:
    """The parts of an engine's address without the /v1 of its calls; None for what can't be one."""
    try:
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:  # UnicodeError among them
        return None
    usable = parts.scheme in ("https", "http") and parts.hostname and port != 0
    clean = url.isascii() and url.isprintable() and not set(' "<>\\^`{}|%') & set(url)
    bare = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts if usable and clean and bare else None


def _read(actor: Viewer, body: dict[str, Any], *, whole: bool, resolve: Resolver) -> dict[str, Any]:
    if not actor.is_operator:
        raise Forbidden
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    values: dict[str, Any] = {}
    if whole or fields.sent("name"):
        values["name"] = fields.text("name", limit=NAME_LIMIT, required=True)
    if whole or fields.sent("url"):
        values["url"] = fields.text("url", limit=URL_LIMIT, required=True)
        _check_url(fields, values["url"], resolve)
    if fields.sent("engine_model"):
        values["engine_model"] = fields.text("engine_model", limit=NAME_LIMIT)
    if fields.sent("api_key"):
        values["api_key"] = fields.secret("api_key", limit=KEY_LIMIT) if body["api_key"] != "" else ""
        if not str(values["api_key"]).isascii() or " " in str(values["api_key"]):
            fields.refuse("api_key", "bad_characters")
    fields.close()
    if errors:
        raise Invalid(errors)
    if "url" in values:
        values["url"] = values["url"].rstrip("/").removesuffix("/v1")
    return values


def _check_url(fields: Fields, url: str, resolve: Resolver) -> None:
    """What it leads to is judged again at each connection: a name may come to mean something else."""
    if not url:
        return
    parts = read_url(url)
    if parts is None or (parts.scheme == "http" and not settings.EXTERNAL_ENGINES_ALLOW_HTTP):
        fields.refuse("url", "bad_engine_url", url)
        return
    if settings.EXTERNAL_ENGINES_ALLOW_PRIVATE:
        return
    host = parts.hostname or ""
    addresses = [read_address(host)]
    if addresses == [None]:
        try:
            found = resolve(host, parts.port or 443, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            fields.refuse("url", "engine_unresolved", url)
            return
        addresses = [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
    if not all(address is not None and is_public(address) for address in addresses):
        fields.refuse("url", "private_engine", url)


@contextmanager
def _unique(values: dict[str, Any]) -> Iterator[None]:
    """Turns a name that is taken into the refusal of it."""
    try:
        yield
    except IntegrityError:
        name = values.get("name", "")
        raise Conflict("name_taken", errors=[FieldError("name", "name_taken", name)], value=name) from None


def _note(actor: Viewer, verb: str, engine: ExternalEngine, **values: Any) -> None:
    audit.note(actor, verb, kind="external_engine", public_id=engine.public_id, name=engine.name, **values)
