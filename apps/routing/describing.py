"""Routes and endpoints as answers: plain dictionaries, with a key's display prefix only (SVC-16)."""

from typing import Any

from django.conf import settings

from apps.routing.models import ExternalEngine, InferenceEndpoint, ModelRoute
from apps.workloads.models import TaskGroup


def describe_route(route: ModelRoute, engine: str) -> dict[str, Any]:
    """A route inside its group's answer; `engine` is the group's."""
    return {
        "id": route.public_id,
        "model_name": route.model_name,
        "engine": engine,
        "version": route.version,
        "priority": route.priority,
        "weight": route.weight,
        "balancing": route.balancing,
        "sticky": route.sticky,
        "active": route.active,
    }


def describe_external_engine(engine: ExternalEngine) -> dict[str, Any]:
    """An external engine, without its key."""
    return {
        "id": engine.public_id,
        "name": engine.name,
        "url": engine.url,
        "engine_model": engine.engine_model,
        "created_at": engine.created_at,
    }


def describe_endpoint(endpoint: InferenceEndpoint, group: TaskGroup) -> dict[str, Any]:
    """An endpoint; `group` is its own, passed so that nothing is read again."""
    key = endpoint.api_key
    return {
        "id": endpoint.public_id,
        "name": endpoint.name,
        "group_id": group.public_id,
        "model_name": group.model_name,
        "port": endpoint.port,
        "external_port": endpoint.external_port,
        "base_url": f"{settings.PUBLIC_URL.rstrip('/')}/v1",
        "key_id": key.public_id if key else None,
        "key_prefix": key.prefix if key else None,
        "created_at": endpoint.created_at,
    }
