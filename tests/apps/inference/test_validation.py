"""Each refusal of a creation request, by exact field and code; what passes, and its defaults."""

from typing import Any

import pytest

from apps.core.errors import Invalid
from tests.apps.inference.bodies import ABSENT, check, refusals


def test_the_seeds_request_passes_as_it_is_written() -> None:
    spec = check({})
    assert (spec.name, spec.model_name) == ("my-qwen-service", "Qwen2.5-0.5B-Instruct")
    assert spec.worker.ports == [{"container_port": 8000, "host_port": 8000}]
    assert (spec.replicas, spec.min_replicas, spec.max_replicas, spec.gpus) == (1, 1, 1, 1)


TASK_FIELDS = [
    ("image", "vllm/vllm-openai:v1"),
    ("gpu_required", 1),
    ("gpu_type", ""),
    ("engine", "vllm"),
    ("model_path", "/m"),
    ("ports", []),
    ("env", {"A": "secret"}),
    ("volumes", []),
    ("command", ["--key", "secret"]),
    ("kv_offload_gb", 1),
    ("estimated_gpu_memory_mb", 1),
    ("timeout_seconds", 1),
    ("pull_credentials", {"username": "u", "password": "secret"}),
]


@pytest.mark.req("SVC-02")
@pytest.mark.parametrize(("name", "value"), TASK_FIELDS)
def test_a_task_field_at_the_top_is_named_with_where_it_belongs(name: str, value: Any) -> None:
    assert refusals({name: value}) == [(name, "field_belongs_in_task")]


@pytest.mark.req("SVC-02")
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("colour", "colour"),
        ("task.colour", "task.colour"),
        ("task.model_name", "task.model_name"),
        ("health_check.retries", "health_check.retries"),
        ("scale_policy.speed", "scale_policy.speed"),
        ("schedule_window.speed", "schedule_window.speed"),
        ("task.pull_credentials.token", "task.pull_credentials.token"),
    ],
)
def test_an_unknown_field_is_refused_by_name(path: str, field: str) -> None:
    assert (field, "unknown_field") in refusals({path: "x"})


@pytest.mark.req("SVC-02")
def test_unknown_fields_inside_lists_are_named_by_their_place() -> None:
    assert refusals({"task.ports": [{"container_port": 1, "protocol": "udp"}], "health_check": ABSENT}) == [
        ("task.ports[0].protocol", "unknown_field")
    ]
    metrics = [{"name": "queue_length", "target_value": 2, "unit": "x"}]
    assert refusals({"scale_policy": {"metrics": metrics}}) == [
        ("scale_policy.metrics[0].unit", "unknown_field")
    ]


@pytest.mark.req("SVC-11")
@pytest.mark.parametrize("value", [True, False, None, "x", {}])
@pytest.mark.parametrize("path", ["co_schedule", "task.co_schedule"])
def test_co_schedule_is_closed_whatever_its_value(path: str, value: Any) -> None:
    assert refusals({path: value}) == [(path, "co_schedule_closed")]


@pytest.mark.req("SHARE-03")
@pytest.mark.parametrize("path", ["qos", "task.qos"])
def test_qos_is_derived_and_never_chosen(path: str) -> None:
    assert refusals({path: "gold"}) == [(path, "not_offered")]


@pytest.mark.req("SVC-10")
@pytest.mark.parametrize("path", [ABSENT, None, "", "   "])
def test_an_inference_service_needs_a_model_path_or_a_command(path: Any) -> None:
    assert refusals({"task.model_path": path}) == [("task.model_path", "model_path_or_command")]
    assert check({"task.model_path": path, "task.command": ["serve"]}).worker.command == ["serve"]
    assert check({"task.model_path": path, "task_type": "container", "enable_api": False})


RANGES = [
    ("task.gpu_required", -1, "out_of_range"),
    ("task.gpu_required", 65, "out_of_range"),
    ("task.gpu_required", 10**30, "out_of_range"),
    ("task.gpu_required", True, "wrong_type"),
    ("task.gpu_required", 1.0, "wrong_type"),
    ("task.gpu_required", "1", "wrong_type"),
    ("gpu_memory_utilization", 0, "out_of_range"),
    ("gpu_memory_utilization", 101, "out_of_range"),
    ("gpu_memory_utilization", 35.5, "wrong_type"),
    ("task.kv_offload_gb", 0, "out_of_range"),
    ("task.kv_offload_gb", 4097, "out_of_range"),
    ("priority", -1, "operators_only"),
    ("priority", 10**20, "out_of_range"),
    ("priority", True, "wrong_type"),
    ("idle_timeout_minutes", -1, "out_of_range"),
    ("task.timeout_seconds", 0, "out_of_range"),
    ("task.estimated_gpu_memory_mb", 0, "out_of_range"),
    ("world_size", 2, "world_size_mismatch"),
    ("world_size", 0, "world_size_mismatch"),
    ("min_replicas", 2, "out_of_range"),
    ("max_replicas", 0, "out_of_range"),
    ("enable_api", "yes", "wrong_type"),
    ("enable_api", 1, "wrong_type"),
    ("preemptible", "no", "wrong_type"),
    ("lend", "perhaps", "not_a_choice"),
    ("lend", True, "not_a_choice"),
    ("labels", [], "wrong_type"),
    ("labels", {"a b": "x"}, "bad_key"),
    ("task.image", "vllm", "bad_image"),
    ("task.image", "vllm/vllm-openai", "bad_image"),
    ("task.image", "Upper/case:1", "bad_image"),
    ("task.image", "a:b c", "bad_image"),
    ("task.image", "x@sha256:abc", "bad_image"),
    ("task.image", "x@md5:" + "a" * 64, "bad_image"),
    ("task.image", "x:" + "t" * 129, "bad_image"),
    ("task.image", "x" * 301 + ":1", "too_long"),
    ("task.image", 5, "wrong_type"),
    ("task.image", "", "blank"),
    ("task.image", ABSENT, "required"),
    ("task", ABSENT, "required"),
    ("task", [], "wrong_type"),
    ("task.engine", "ollama", "not_a_choice"),
    ("task.engine", "sglang", "not_yet_offered"),
    ("task.image", "lmsysorg/sglang:v0.5", "not_yet_offered"),
    ("task_type", "batch", "not_a_choice"),
    ("parallelism", "mesh", "not_a_choice"),
    ("parallelism", "pd", "not_yet_offered"),
    ("parallelism", "ring", "not_yet_offered"),
    ("parallelism", ["single"], "not_a_choice"),
    ("task.env", ["A=1"], "wrong_type"),
    ("task.env", {"1A": "x"}, "bad_key"),
    ("task.command", "serve", "wrong_type"),
    ("task.volumes", ["x"] * 33, "too_many"),
    ("task.pull_credentials", "u:p", "wrong_type"),
    ("health_check", "http", "wrong_type"),
    ("health_check.type", "grpc", "not_a_choice"),
    ("health_check.path", "health", "bad_url_path"),
    ("health_check.port", 9000, "port_not_declared"),
    ("health_check.interval_seconds", 0, "out_of_range"),
    ("health_check.timeout_seconds", 0, "out_of_range"),
    ("health_check.unhealthy_threshold", 0, "out_of_range"),
    ("health_check.start_period_seconds", -1, "out_of_range"),
    ("schedule_window.timezone", "Mars/Olympus", "bad_time_zone"),
    ("schedule_window.start", "25:00", "bad_time_of_day"),
    ("schedule_window.action", "sleep", "not_a_choice"),
]


@pytest.mark.req("SVC-08", "PAR-01", "AGENT-08")
@pytest.mark.parametrize(("path", "value", "code"), RANGES)
def test_a_value_outside_its_rule_is_named_with_the_rule(path: str, value: Any, code: str) -> None:
    assert refusals({path: value}) == [(path, code)]


@pytest.mark.req("SVC-08")
def test_a_refusal_carries_the_value_and_the_limits() -> None:
    with pytest.raises(Invalid) as caught:
        check({"task.gpu_required": 65})
    error = caught.value.errors[0]
    assert (error.value, error.params) == (65, {"min": 0, "max": 64})


@pytest.mark.req("SVC-08")
def test_the_edges_of_each_range_pass() -> None:
    check({"task.gpu_required": 64, "world_size": 64})
    check({"task.gpu_required": 0, "world_size": 0})
    check({"task.gpu_required": 0, "world_size": 1})
    check({"gpu_memory_utilization": 1})
    check({"gpu_memory_utilization": 100})
    check({"priority": 0})
    assert check({"priority": -5}, is_operator=True).priority == -5


@pytest.mark.req("SVC-08")
@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:latest",
        "llama.cpp:server",
        "localhost/vllm:1",
        "registry.example:5000/team/vllm-openai:v0.12.0",
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "vllm@sha256:" + "0" * 64,
    ],
)
def test_images_by_tag_or_digest_pass(image: str) -> None:
    assert check({"task.image": image}).worker.image == image


@pytest.mark.req("SVC-02", "SVC-08")
@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([{"container_port": 0}], [("task.ports[0].container_port", "out_of_range")]),
        ([{"container_port": 65536}], [("task.ports[0].container_port", "out_of_range")]),
        ([{"host_port": 80}], [("task.ports[0].container_port", "required")]),
        (
            [{"container_port": 80, "host_port": 65536}],
            [("task.ports[0].host_port", "out_of_range")],
        ),
        (
            [{"container_port": 80}, {"container_port": 80}],
            [("task.ports[1].container_port", "duplicate")],
        ),
        (
            [{"container_port": 80, "host_port": 5}, {"container_port": 81, "host_port": 5}],
            [("task.ports[1].host_port", "duplicate")],
        ),
        ([8000], [("task.ports[0]", "wrong_type")]),
        ({"container_port": 80}, [("task.ports", "wrong_type")]),
    ],
)
def test_port_mappings(ports: Any, expected: list[tuple[str, str]]) -> None:
    assert refusals({"task.ports": ports, "health_check": ABSENT}) == expected


@pytest.mark.req("SVC-06")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": ABSENT}, [("name", "required")]),
        ({"name": ""}, [("name", "blank")]),
        ({"name": "  \u3000 "}, [("name", "blank")]),
        ({"name": "a\x00b"}, [("name", "bad_characters")]),
        ({"name": "a\nb"}, [("name", "bad_characters")]),
        ({"name": "a\u202eb"}, [("name", "bad_characters")]),
        ({"name": "a\ud800"}, [("name", "bad_characters")]),
        ({"name": "x" * 201}, [("name", "too_long")]),
        ({"name": 7}, [("name", "wrong_type")]),
        ({"model_name": "two words"}, [("model_name", "bad_name")]),
        ({"model_name": "rocket\U0001f680"}, [("model_name", "bad_name")]),
        ({"model_name": "-dash-first"}, [("model_name", "bad_name")]),
        ({"name": "Qwen \U0001f680", "model_name": ABSENT}, [("model_name", "model_name_from_name")]),
        ({"name": "a b", "model_name": ""}, [("model_name", "model_name_from_name")]),
    ],
)
def test_names(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert refusals(changes) == expected


@pytest.mark.req("SVC-06")
def test_names_are_trimmed_and_stand_in_for_a_missing_model_name() -> None:
    spec = check({"name": "  通义千问-7B  ", "model_name": ABSENT})
    assert (spec.name, spec.model_name) == ("通义千问-7B", "通义千问-7B")
    assert check({"name": "Qwen \U0001f680 \u2764\ufe0f"}).name == "Qwen \U0001f680 \u2764\ufe0f"
    assert check({"model_name": "org/Qwen2.5:v1_a-b"}).model_name == "org/Qwen2.5:v1_a-b"


@pytest.mark.req("SVC-04")
@pytest.mark.parametrize("ports", [ABSENT, None, []])
def test_a_model_path_forces_the_api_on_and_adds_port_8000_only_where_none_is_mapped(ports: Any) -> None:
    spec = check({"task.ports": ports, "enable_api": False})
    assert spec.enable_api
    assert spec.worker.ports == [{"container_port": 8000, "host_port": 0}]
    kept = check({"task.ports": [{"container_port": 9000}], "enable_api": False, "health_check": ABSENT})
    assert kept.worker.ports == [{"container_port": 9000, "host_port": 0}]
    neither = check(
        {"task.ports": ports, "task.model_path": "", "task.command": ["x"], "enable_api": False}
        | {"health_check": ABSENT}
    )
    assert not neither.enable_api
    assert neither.worker.ports == []


@pytest.mark.req("AGENT-08")
def test_the_start_period_is_60_when_absent_and_30_when_zero() -> None:
    assert check({"health_check": ABSENT}).health_check == {
        "type": "engine",
        "path": "/health",
        "port": 0,
        "interval_seconds": 10,
        "timeout_seconds": 3,
        "unhealthy_threshold": 3,
        "start_period_seconds": 60,
    }
    assert check({"health_check.start_period_seconds": 0}).health_check["start_period_seconds"] == 30
    assert check({"health_check.start_period_seconds": 300}).health_check["start_period_seconds"] == 300


@pytest.mark.req("AGENT-08")
def test_the_check_that_knows_its_engine_is_for_engines_of_the_catalog() -> None:
    plain = {"task.image": "example/own:1", "task.command": ["serve"], "task.model_path": ""}
    assert check(plain | {"health_check": ABSENT}).health_check["type"] == "http"
    assert check(plain | {"health_check.type": ABSENT}).health_check["type"] == "http"
    assert refusals(plain | {"health_check.type": "engine"}) == [("health_check.type", "not_a_choice")]
    for kind in ("engine", "http", "tcp", "none"):
        assert check({"health_check.type": kind}).health_check["type"] == kind
    assert check({"health_check": {"interval_seconds": 5}}).health_check["type"] == "engine"
    assert check({"health_check": ABSENT, "task_type": "container"}).health_check["type"] == "http"


@pytest.mark.parametrize("volume", ["data:/x", "/a:b", "/a", "/a/../etc:/x", "/a:/b:rx", "/a:/b:ro:x"])
def test_volumes_are_absolute_on_both_sides(volume: str) -> None:
    assert refusals({"task.volumes": [volume]}) == [("task.volumes[0]", "bad_volume")]
    assert check({"task.volumes": ["/a:/b", "/a:/c:ro"]})


@pytest.mark.req("SVC-02")
def test_secrets_are_never_echoed() -> None:
    changes = {
        "task.pull_credentials": {"username": "\x01", "password": "hunter2-\x00", "extra": "hunter2"},
        "task.env": {"TOKEN": "hunter2\x00", "OTHER": 5},
        "task.command": ["hunter2\x00"],
        "pull_credentials": {"password": "hunter2"},
    }
    with pytest.raises(Invalid) as caught:
        check(changes)
    assert "hunter2" not in repr(caught.value.errors)
    for name in ("pull_credentials", "env", "command"):
        for wrong in ("hunter2", {"hunter2": 1} if name == "command" else ["hunter2"], [["hunter2"]]):
            with pytest.raises(Invalid) as caught:
                check({f"task.{name}": wrong})
            assert "hunter2" not in repr(caught.value.errors)
    good = check({"task.pull_credentials": {"username": "u", "password": "hunter2"}})
    assert "hunter2" not in repr(good)


def test_all_broken_rules_come_at_once() -> None:
    found = refusals({"name": "", "task.image": "x", "priority": -1, "zzz": 1, "gpu_required": 1})
    assert set(found) == {
        ("name", "blank"),
        ("task.image", "bad_image"),
        ("priority", "operators_only"),
        ("zzz", "unknown_field"),
        ("gpu_required", "field_belongs_in_task"),
    }


def test_an_answer_never_lists_more_than_a_hundred_errors() -> None:
    assert len(refusals({f"f{n}": n for n in range(5000)})) == 100
