"""Where each model name leads: routes with the replicas and external engines that may take their calls.

Owns the reading of them for the published table, in a fixed number of statements whatever the size. One row
that can not be read stops no other (RECOV-05).
"""

import logging
from collections import defaultdict
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import TextField
from django.db.models.functions import Cast

from agent.contract.door import derive_key
from apps.core.secrets import SecretUnreadable, decrypt, derive_engine_key
from apps.routing.models import ExternalEngine, ModelRoute
from apps.routing.table import Door, Replica, Route
from apps.workloads import selectors as work
from apps.workloads.selectors import ReadyReplica

log = logging.getLogger("heteroflow.routing")


def load_routes() -> dict[str, dict[str, tuple[Route, ...]]]:
    """Routes by tenant id and model name, those of the lowest priority number first."""
    replicas, externals = _load_replicas(), _load_externals()
    dozing, asleep = work.dozing_groups(), work.sleeping_groups()
    found: dict[str, dict[str, list[Route]]] = defaultdict(dict)
    rows = ModelRoute.objects.filter(group__deleted_at__isnull=True).select_related("tenant", "group")
    for row in rows.order_by("priority", "pk"):
        # An inactive route leaves its model known: 503 and not 404.
        of_model = found[row.tenant.public_id].setdefault(row.model_name, [])
        if not row.active:
            continue
        if row.group_id is None:
            of_model.append(_build_route(row, externals.get(row.external_id or 0, [])))
        else:
            to = replicas.get(row.group_id, [])
            of_model.append(_build_route(row, to, row.group_id in dozing, row.group_id in asleep))
    return {
        tenant: {model: tuple(routes) for model, routes in models.items()} for tenant, models in found.items()
    }


def _load_replicas() -> dict[int, list[Replica]]:
    found: dict[int, list[Replica]] = defaultdict(list)
    for ready in work.ready_replicas():
        try:
            replica = _build_replica(ready)
        except (KeyError, TypeError, ValueError) as error:
            kind = type(error).__name__
            log.error("task %s is not published: its node's door can not be read (%s)", ready.task_id, kind)
            continue
        found[ready.group_id].append(replica)
    return found


def _load_externals() -> dict[int, list[Replica]]:
    found: dict[int, list[Replica]] = {}
    # The key is read as it rests, so that one that no configured key opens leaves out its engine alone.
    rows = ExternalEngine.objects.defer("api_key").annotate(sealed=Cast("api_key", TextField()))
    for row in rows:
        try:
            found[row.pk] = [_build_external(row)]
        except (SecretUnreadable, ValueError) as error:
            kind = type(error).__name__
            log.error("external engine %s is not published: %s", row.public_id, kind)
    return found


def _build_route(
    row: ModelRoute, replicas: list[Replica], dozing: bool = False, asleep: bool = False
) -> Route:
    return Route(
        route_id=row.public_id,
        group_id="" if row.group is None else row.group.public_id,
        priority=row.priority,
        weight=row.weight,
        version=row.version,
        balancing=row.balancing,
        replicas=tuple(replicas),
        dozing=dozing,
        asleep=asleep,
        sticky=row.sticky,
    )


def _build_replica(ready: ReadyReplica) -> Replica:
    """Catalog engines are started under the group's model name; of anything else, and where somebody's own
    command starts one, it is asked for (GW-05)."""
    return Replica(
        task_id=ready.task_id,
        attempt=ready.attempt,
        host=str(ready.dial.get("host", "")),
        port=ready.port,
        engine=ready.engine,
        served_model_name=ready.model_name if ready.engine and not ready.own_command else "",
        engine_key=derive_engine_key(ready.task_id, ready.attempt) if ready.engine else "",
        door=_build_door(ready) if ready.dial.get("kind") == "door" else None,
    )


def _build_external(row: ExternalEngine) -> Replica:
    """Raises SecretUnreadable, or ValueError for an address that is none."""
    parts = urlsplit(row.url)
    if not parts.hostname:
        raise ValueError("no host")
    sealed: str = row.sealed  # type: ignore[attr-defined]
    return Replica(
        task_id=row.public_id,
        attempt=row.revision,
        host=parts.hostname,
        port=parts.port or (443 if parts.scheme == "https" else 80),
        engine="external",
        served_model_name=row.engine_model,
        engine_key=decrypt(sealed) if sealed else "",
        external=True,
        tls=parts.scheme == "https",
        path_prefix=parts.path.rstrip("/"),
        private_ok=settings.EXTERNAL_ENGINES_ALLOW_PRIVATE,
    )


def _build_door(ready: ReadyReplica) -> Door:
    """Raises KeyError, TypeError or ValueError for a row that names no usable door."""
    return Door(
        host=str(ready.dial["host"]),
        port=int(ready.dial["port"]),
        certificate_sha256=str(ready.dial["certificate_sha256"]),
        key=derive_key(ready.node_secret_sha256),
        skew_s=ready.node_skew_s,
    )
