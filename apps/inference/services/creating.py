"""Creating a service: what can be known is refused first, then one transaction makes it (SVC-01).

Route and endpoint stand in a savepoint each: their unexpected failure leaves the group and becomes a
warning on it (SVC-05). Never validates fields itself; never places anything.
"""

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from agent.contract.codes import Code
from apps.core import audit, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Refusal
from apps.inference.services.foreseeing import find_warnings, foresee, group_fields, task_fields
from apps.inference.validation import ServiceSpec, validate_create
from apps.routing import services as routing
from apps.routing.models import InferenceEndpoint
from apps.routing.selectors import count_endpoints, is_endpoint_name_taken
from apps.tenants import quotas
from apps.tenants.models import Tenant, TenantStatus
from apps.tenants.scope import Viewer, pick_tenant
from apps.tenants.trail import tenancy_of
from apps.workloads import selectors as work
from apps.workloads.models import GroupWarning, TaskGroup
from apps.workloads.services import create_group

log = logging.getLogger("heteroflow.inference")


@dataclass(frozen=True)
class Created:
    """What a creation made. `api_key_plain` is shown in this one answer and kept nowhere (TEN-06)."""

    group: TaskGroup
    endpoint: InferenceEndpoint | None
    api_key_plain: str | None
    warnings: list[GroupWarning]

    def __repr__(self) -> str:  # never the key
        return f"Created({self.group.public_id})"


def create_service(*, actor: Viewer, body: dict[str, Any], now: datetime) -> Created:
    """Make a group with tasks, route and endpoint from a request body (SVC-01 to -08, -10, -11).

    Raises Invalid (400, by field), NotFound or Forbidden for the tenant, Refusal 403
    `tenant_suspended` or `quota_exceeded`, Conflict 409 `name_taken`; nothing is written then.
    """
    tenant, spec = read_request(actor, body, now)
    try:
        with transaction.atomic():
            ensure_quota(tenant, spec)
            refuse_taken(tenant, spec)  # again: whoever held the quota row may have taken it
            return _create(actor, tenant, spec, now)
    except IntegrityError:
        refuse_taken(tenant, spec)
        raise


def read_request(actor: Viewer, body: dict[str, Any], now: datetime) -> tuple[Tenant, ServiceSpec]:
    """What is asked for, for whom, with its memory estimated. Refuses what can be known without counting;
    see `create_service`."""
    spec = validate_create(body, is_operator=actor.is_operator)
    tenant = pick_tenant(actor, spec.tenant)
    if actor.user_id is None:  # every group has a person who made it
        raise Forbidden
    _refuse_suspended(tenant)
    refuse_taken(tenant, spec)
    return tenant, foresee(tenant, spec, now)


def _refuse_suspended(tenant: Tenant) -> None:
    if tenant.status == TenantStatus.SUSPENDED:
        raise Refusal("tenant_suspended", 403, why=tenant.suspended_reason or "-")


def _makes_endpoint(spec: ServiceSpec) -> bool:
    return spec.enable_api and bool(spec.worker.ports)


def refuse_taken(tenant: Tenant, spec: ServiceSpec) -> None:
    """The group's name, and the endpoint's, which is the same one (SVC-05, SVC-07)."""
    groups = TaskGroup.objects.filter(tenant=tenant, name=spec.name, deleted_at__isnull=True)
    if groups.exists() or (_makes_endpoint(spec) and is_endpoint_name_taken(tenant.pk, spec.name)):
        raise Conflict("name_taken", errors=[FieldError("name", "name_taken", spec.name)], value=spec.name)


def ensure_quota(tenant: Tenant, spec: ServiceSpec) -> None:
    """Count inside the transaction that holds the quota row (TEN-07)."""
    quota = quotas.lock(tenant)
    counts = work.count_for_quota(tenant)
    quotas.ensure(quota, "task_groups", used=counts.task_groups, asked=1)
    quotas.ensure(quota, "replicas", used=counts.replicas, asked=spec.replicas)
    quotas.ensure(quota, "gpus", used=counts.gpus, asked=spec.gpus)
    if _makes_endpoint(spec):
        quotas.ensure(quota, "endpoints", used=count_endpoints(tenant.pk), asked=1)


def _create(actor: Viewer, tenant: Tenant, spec: ServiceSpec, now: datetime) -> Created:
    group = create_group(
        actor=actor,
        tenant=tenant,
        group_fields=group_fields(spec),
        task_fields=task_fields(spec),
        replicas=spec.replicas,
        now=now,
    )
    warnings = [_warn(group, code) for code in find_warnings(spec)]
    if spec.serves:
        _add_route(group, spec, warnings)
    made = _add_endpoint(actor, group, spec, warnings, now) if _makes_endpoint(spec) else None
    versions.bump()
    audit.note(
        actor,
        "create_service",
        kind="group",
        public_id=group.public_id,
        name=group.name,
        tenant=tenancy_of(tenant),
        after=_asked(spec),
    )
    endpoint, plain = made or (None, None)
    return Created(group, endpoint, plain, warnings)


def _asked(spec: ServiceSpec) -> dict[str, Any]:
    """What was asked for, for the audit trail: of the environment the names alone."""
    worker = spec.worker
    return {
        "model_name": spec.model_name,
        "task_type": spec.task_type,
        "replicas": spec.replicas,
        "gpus": spec.gpus,
        "image": worker.image,
        "engine": worker.engine,
        "model_path": worker.model_path,
        "env_names": sorted(worker.env),
        "volumes": worker.volumes,
    }


def _add_route(group: TaskGroup, spec: ServiceSpec, warnings: list[GroupWarning]) -> None:
    try:
        with transaction.atomic():
            routing.create_route(group=group, model_name=spec.model_name)
    except Exception:  # whatever it is, the group stands and says what to mend (SVC-05)
        log.exception("no route for group %s", group.public_id)
        warnings.append(_warn(group, Code.ROUTE_NOT_CREATED))


def _add_endpoint(
    actor: Viewer, group: TaskGroup, spec: ServiceSpec, warnings: list[GroupWarning], now: datetime
) -> tuple[InferenceEndpoint, str] | None:
    try:
        with transaction.atomic():
            port = spec.worker.ports[0]["container_port"]
            return routing.create_endpoint(actor=actor, group=group, name=spec.name, port=port, now=now)
    except Exception:  # as for the route
        log.exception("no endpoint for group %s", group.public_id)
        warnings.append(_warn(group, Code.ENDPOINT_NOT_CREATED))
        return None


def _warn(group: TaskGroup, code: Code) -> GroupWarning:
    return GroupWarning.objects.create(group=group, code=code)
