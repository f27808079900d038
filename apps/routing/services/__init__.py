"""Writes of routes and endpoints. Each raises the gateway's version in its own transaction, so that
a change takes effect everywhere within a table reload (GW-16)."""

from apps.routing.services.endpoints import create_endpoint, delete_endpoint, update_endpoint
from apps.routing.services.routes import create_route, remove_routes_of, update_route

__all__ = [
    "create_endpoint",
    "create_route",
    "delete_endpoint",
    "remove_routes_of",
    "update_endpoint",
    "update_route",
]
