"""health_check of a group (AGENT-08): the container's own probe, counted from its real start."""

from typing import Any

from apps.core.bodies import Fields

TYPES = ("http", "tcp", "none")
START_PERIOD_S = 60  # absent
SHORTEST_START_PERIOD_S = 30  # sent as 0


def read_health_check(fields: Fields, container_ports: list[int], *, known: bool) -> dict[str, Any]:
    """The whole check with its defaults; `none` by itself where there is no port to probe. `known`
    False = the ports themselves were wrong, so nothing is measured by them."""
    section = fields.section("health_check")
    if section is None:
        kind = "http" if container_ports else "none"
        return _build(kind, "/health", 0, 10, 3, 3, START_PERIOD_S)
    kind = section.choice("type", TYPES, "http")
    path = section.text("path", limit=500, default="/health") or "/health"
    if not path.startswith("/") or any(c.isspace() for c in path):
        section.refuse("path", "bad_url_path", path)
    port = section.integer("port", 0, 65535, 0) or 0
    interval = section.number("interval_seconds", 1, 3600, 10)
    timeout = section.number("timeout_seconds", 0.1, 300, 3)
    threshold = section.integer("unhealthy_threshold", 1, 100, 3)
    start = section.number("start_period_seconds", 0, 86400, START_PERIOD_S)
    section.close()
    if known and kind != "none" and (port not in container_ports if port else not container_ports):
        names = ", ".join(map(str, container_ports)) or "-"
        section.refuse("port", "port_not_declared", port, ports=names)
    return _build(kind, path, port, interval, timeout, threshold, start or SHORTEST_START_PERIOD_S)


def _build(
    kind: str, path: str, port: int, interval: Any, timeout: Any, threshold: Any, start: Any
) -> dict[str, Any]:
    return {
        "type": kind,
        "path": path,
        "port": port,
        "interval_seconds": interval,
        "timeout_seconds": timeout,
        "unhealthy_threshold": threshold,
        "start_period_seconds": start,
    }
