"""Where a call would go, and why: the published routes of one model, judged by what the gateways say (GW-03).

Reads only; whoever asks sees the routes of services in their sight, of all others the share alone. Asks no
engine and makes no call. The rules are `plane/core/explain.py`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings

from apps.core import texts
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.address import find_address, is_within, require_address
from apps.gateway.plane.core.admission import (
    find_refusal,
    find_routes,
    refuse_unready,
    require_live,
    require_pin,
)
from apps.gateway.plane.core.choice import NO_PINS, Pins
from apps.gateway.plane.core.explain import ReplicaWord, RouteWord, Seen, explain
from apps.gateway.plane.io.config import load_config
from apps.routing import gateways, selectors
from apps.routing.load import Source, seen_by, words_of
from apps.routing.models import ModelRoute
from apps.routing.published import find_key, load_routes, read_version
from apps.routing.table import INFERENCE, PIN, Key, Table
from apps.tenants.models import ApiKey, Tenant
from apps.tenants.scope import Viewer


@dataclass(frozen=True)
class Asked:
    """A call as somebody imagines it. Without a `key` it may do everything. `user`: the body's own field;
    `address`: where it comes from, "" = that is not judged."""

    tenant: Tenant
    model: str
    key: ApiKey | None = None
    pins: Pins = NO_PINS
    user: str = ""
    address: str = ""


def live_sources(now: datetime) -> list[Source]:
    """The gateway processes that spoke within LOAD_FRESH_S."""
    since = now - timedelta(seconds=settings.LOAD_FRESH_S)
    return [source for source in gateways.read() if not source.left and source.said_at >= since]


def foretell(viewer: Viewer, asked: Asked, now: datetime) -> dict[str, Any]:
    """What would become of the call: the refusal it would get, if any, and every route with its reason.

    `tenant` and `key` must be in the viewer's sight: pick them by selectors.
    """
    sources = live_sources(now)
    of_model = load_routes().get(asked.tenant.public_id, {}).get(asked.model)
    key = _key_of(asked)
    found: list[RouteWord] = []
    refusal: errors.CallError | None = None
    config = load_config()
    try:
        _require(key, asked.address, now.timestamp())
        table = Table(0, {}, {} if of_model is None else {asked.tenant.public_id: {asked.model: of_model}})
        find_routes(table, key, asked.model)
        require_pin(key, asked.pins)
    except errors.CallError as fault:
        refusal = fault
    if of_model:
        found = explain(
            of_model,
            [_seen(source, asked.tenant.public_id) for source in sources] or [Seen()],
            now.timestamp(),
            limit=config.replica_connections,
            load_fresh_s=config.engine_load_fresh_s,
            pins=asked.pins,
            session=lambda kind: {"header": asked.pins.session, "user": asked.user}.get(kind, key.key_id),
        )
    if refusal is None and not any(word.percent for word in found):
        refusal = refuse_unready(of_model or (), asked.model, config.retry_after_s)
    told = _told(viewer, asked, found, refusal, sources)
    return told | {"address": None if asked.key is None else _address(key, asked.address)}


def _key_of(asked: Asked) -> Key:
    """As it is published; one that was given and is not published has ended. Without one: of the tenant, and
    nothing else stands against it."""
    tenant = asked.tenant
    plain = Key("", "", tenant.public_id, tenant.slug, "", scopes=frozenset({INFERENCE, PIN}))
    if asked.key is not None:
        return find_key(asked.key.sha256) or msgspec.structs.replace(plain, expires_at=0.0)
    return msgspec.structs.replace(plain, suspended=tenant.suspension)


def _require(key: Key, address: str, now: float) -> None:
    """The gateway's own checks of a key, in its order. Raises CallError."""
    require_live(key, now=now)
    if (refusal := find_refusal(key, INFERENCE)) is not None:
        raise refusal
    if address:
        require_address(key, find_address(address, b"", ()))


def _address(key: Key, address: str) -> dict[str, str]:
    """What the key's allowed addresses say to this one, for those who may see the key."""
    networks, seen = key.allowed_networks, find_address(address, b"", ())
    within = [one for one in networks or () if seen is not None and is_within(seen, (one,))]
    if networks is None:
        code = "address_any"
    elif not address:
        code = "address_not_judged"
    else:
        code = "address_within" if within else "address_outside"
    shown = ", ".join(within or networks or ())
    return {"code": code, "text": texts.say(code, {"address": address, "networks": shown})}


def _told(
    viewer: Viewer,
    asked: Asked,
    found: list[RouteWord],
    refusal: errors.CallError | None,
    sources: list[Source],
) -> dict[str, Any]:
    rows = selectors.routes(viewer).filter(tenant=asked.tenant, model_name=asked.model)
    seen = {row.public_id: row for row in rows}
    shown = [
        _route(viewer, seen[word.route.route_id], word, sources)
        for word in found
        if word.route.route_id in seen
    ]
    published = {word.route.route_id for word in found}
    shown += [_off(row) for row in rows if not row.active and row.public_id not in published]
    others = [word for word in found if word.route.route_id not in seen]
    return {
        "model": asked.model,
        "tenant": asked.tenant.slug,
        "table_version": read_version(),
        "gateways": len(sources),
        "refusal": None
        if refusal is None
        else {"status": refusal.status, "code": refusal.code or "", "message": refusal.message},
        "routes": shown,
        "others": len(others),
        "others_percent": round(sum(word.percent for word in others), 1),
    }


def _route(viewer: Viewer, row: ModelRoute, word: RouteWord, sources: list[Source]) -> dict[str, Any]:
    return _facts(row) | {
        "percent": word.percent,
        "reason": {"code": word.code, "text": texts.say(word.code)},
        "replicas": [_replica(viewer, one, row.tenant.public_id, sources) for one in word.replicas],
    }


def _off(row: ModelRoute) -> dict[str, Any]:
    reason = {"code": "route_off", "text": texts.say("route_off")}
    return _facts(row) | {"percent": 0.0, "reason": reason, "replicas": []}


def _facts(row: ModelRoute) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "leads_to": row.group.name if row.group else row.external.name if row.external else "",
        "group_id": row.group.public_id if row.group else None,
        "priority": row.priority,
        "weight": row.weight,
        "version": row.version,
        "balancing": row.balancing,
        "sticky": row.sticky,
        "active": row.active,
    }


def _replica(viewer: Viewer, word: ReplicaWord, tenant_id: str, sources: list[Source]) -> dict[str, Any]:
    """Of an engine that other tenants may share nothing is told of their calls."""
    task_id = word.replica.task_id
    in_flight = sum(source.load.in_flight.get(task_id, 0) for source in sources)
    standings = sorted(word.standings.items(), key=lambda item: -item[1])
    return {
        "task_id": task_id,
        "percent": word.percent,
        "in_flight": None if word.replica.external and not viewer.is_operator else in_flight,
        "standings": [
            {"code": f"standing_{name}", "text": texts.say(f"standing_{name}"), "gateways": count}
            for name, count in standings
        ],
        **told_of(task_id, sources, tenant_id),
    }


def _seen(source: Source, tenant_id: str) -> Seen:
    words = {task_id: seen_by(word, tenant_id) for task_id, word in source.load.backends.items()}
    return Seen(source.load.in_flight, words)


def told_of(task_id: str, sources: list[Source], tenant_id: str | None = None) -> dict[str, Any]:
    """What the processes say of one backend, together: failures of all, the newest word of its engine. None =
    nobody told, which is not 0. `tenant_id`: whose calls' failures; None = everybody's."""
    words = words_of(sources, task_id, tenant_id)
    last: Mapping[str, Any] = max(
        (msgspec.structs.asdict(word) for word in words if word.told_at is not None),
        key=lambda word: word["told_at"],
        default={},
    )
    return {
        "failures": sum(word.failures for word in words),
        "last_failure": next((word.last_failure for word in words if word.last_failure), ""),
        "running": last.get("running"),
        "waiting": last.get("waiting"),
        "kv_use": last.get("kv_use"),
    }
