"""Port mappings of a task: {container_port 1-65535, host_port 0-65535}, none twice (SVC-04)."""

from apps.core.bodies import Fields

PORTS_LIMIT = 32
DEFAULT_CONTAINER_PORT = 8000


def read_ports(fields: Fields) -> list[dict[str, int]]:
    """The mappings; host_port absent or 0 is taken from the node's pool when it is placed."""
    ports: list[dict[str, int]] = []
    seen: dict[str, set[int]] = {"container_port": set(), "host_port": set()}
    for mapping in fields.objects("ports", limit=PORTS_LIMIT):
        if not mapping.sent("container_port"):
            mapping.refuse("container_port", "required")
        container_port = mapping.integer("container_port", 1, 65535)
        host_port = mapping.integer("host_port", 0, 65535, 0)
        mapping.close()
        for name, number in (("container_port", container_port), ("host_port", host_port)):
            if number and number in seen[name]:
                mapping.refuse(name, "duplicate", number)
            seen[name].add(number or 0)
        if container_port is not None:
            ports.append({"container_port": container_port, "host_port": host_port or 0})
    return ports
