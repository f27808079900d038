"""Writes of routes and endpoints. Each raises the gateway's version in its own transaction, so that
a change takes effect everywhere within a table reload (GW-16)."""

from apps.routing.services.endpoints import create_endpoint, delete_endpoint, update_endpoint
from apps.routing.services.external import (
    create_external_engine,
    delete_external_engine,
    update_external_engine,
)
from apps.routing.services.routes import (
    add_route,
    create_route,
    delete_route,
    remove_routes_of,
    update_route,
)

__all__ = [
    "add_route",
    "create_endpoint",
    "create_external_engine",
    "create_route",
    "delete_endpoint",
    "delete_external_engine",
    "delete_route",
    "remove_routes_of",
    "update_endpoint",
    "update_external_engine",
    "update_route",
]
