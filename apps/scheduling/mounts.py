"""What a task mounts of its node, by the paths there. Pure."""

from collections.abc import Iterable


def host_paths(volumes: Iterable[str], model_path: str) -> tuple[str, ...]:
    """What is mounted of the host, each once: volumes are HOST[:INSIDE[:ro]]; a model path that is not
    absolute lies where the node keeps its models (AGENT-05)."""
    paths = [volume.split(":", 1)[0] for volume in volumes]
    if model_path.startswith("/"):
        paths.append(model_path)
    return tuple(dict.fromkeys(paths))
