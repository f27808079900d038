"""Requests that tests send: one good body, and a way to change single fields of it by dotted path."""

import copy
from typing import Any

import pytest

from apps.core.errors import Invalid
from apps.inference.validation import ServiceSpec, validate_create

ABSENT = object()

GOOD: dict[str, Any] = {
    "name": "my-qwen-service",
    "model_name": "Qwen2.5-0.5B-Instruct",
    "parallelism": "single",
    "world_size": 1,
    "enable_api": True,
    "idle_timeout_minutes": 0,
    "gpu_memory_utilization": 35,
    "task": {
        "name": "my-qwen-service-worker",
        "image": "vllm/vllm-openai:v0.12.0",
        "gpu_required": 1,
        "gpu_type": "",
        "engine": "",
        "model_path": "/data/models/qwen-0.5b",
        "ports": [{"container_port": 8000, "host_port": 8000}],
    },
    "health_check": {
        "type": "http",
        "path": "/health",
        "port": 8000,
        "interval_seconds": 10,
        "timeout_seconds": 3,
        "unhealthy_threshold": 3,
        "start_period_seconds": 60,
    },
}


def body(**changes: Any) -> dict[str, Any]:
    """GOOD with changes by path: `body(**{"task.image": "x"})`; ABSENT removes a field."""
    result = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is ABSENT:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def check(changes: dict[str, Any], *, is_operator: bool = False) -> ServiceSpec:
    """The good request with these changes, checked."""
    return validate_create(body(**changes), is_operator=is_operator)


def refusals(changes: dict[str, Any], *, is_operator: bool = False) -> list[tuple[str, str]]:
    """(field, code) of each rule that the good request breaks with these changes."""
    with pytest.raises(Invalid) as caught:
        check(changes, is_operator=is_operator)
    return [(error.field, error.code) for error in caught.value.errors]
