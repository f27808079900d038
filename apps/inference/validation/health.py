"""health_check of a group (AGENT-08): the container's own probe, counted from its real start."""

from typing import Any

import msgspec

from agent.contract.messages import HealthCheck
from agent.engines.catalog import get_engine
from apps.core.bodies import Fields

TYPES = ("http", "tcp", "none")
# Told by the engine itself what is loading and what is stuck; only of engines that the catalog knows.
ENGINE_AWARE = "engine"
SHORTEST_START_PERIOD_S = 30  # sent as 0


def read_health_check(
    fields: Fields, container_ports: list[int], *, engine: str | None, known: bool
) -> dict[str, Any]:
    """The whole check with its defaults: `engine` by itself for one of the catalog, `none` where there is no
    port to probe. What was wrong itself measures nothing: `known` False = the ports, `engine` None = what
    tells the engine."""
    section = fields.section("health_check")
    aware = engine is None or get_engine(engine) is not None
    types = (*TYPES, ENGINE_AWARE) if aware else TYPES
    usual = HealthCheck(type=ENGINE_AWARE if aware else "http")
    if section is None:
        return msgspec.to_builtins(usual if container_ports else HealthCheck(type="none"))
    kind = section.choice("type", types, usual.type)
    path = section.text("path", limit=500, default=usual.path) or usual.path
    if not path.startswith("/") or any(c.isspace() for c in path):
        section.refuse("path", "bad_url_path", path)
    port = section.integer("port", 0, 65535) or usual.port
    interval = section.number("interval_seconds", 1, 3600)
    timeout = section.number("timeout_seconds", 0.1, 300)
    threshold = section.integer("unhealthy_threshold", 1, 100)
    start = section.number("start_period_seconds", 0, 86400, usual.start_period_seconds)
    section.close()
    if known and kind != "none" and (port not in container_ports if port else not container_ports):
        names = ", ".join(map(str, container_ports)) or "-"
        section.refuse("port", "port_not_declared", port, ports=names)
    check = HealthCheck(
        type=kind,
        path=path,
        port=port,
        interval_seconds=interval or usual.interval_seconds,
        timeout_seconds=timeout or usual.timeout_seconds,
        unhealthy_threshold=threshold or usual.unhealthy_threshold,
        start_period_seconds=start or SHORTEST_START_PERIOD_S,
    )
    return msgspec.to_builtins(check)
