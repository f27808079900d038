"""What engines say of their own load, as they say it."""

import pytest

from apps.gateway.plane.core.engine_load import EngineLoad, metrics_path, read_load

pytestmark = pytest.mark.req("GW-04")
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
"""
LLAMA = b"""# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
"""


def test_the_engines_of_the_catalog() -> None:
    assert read_load("vllm", VLLM, at=7.0, in_flight=2) == EngineLoad(7.0, 1.0, 0.75, 7.0, 2)
    assert read_load("llamacpp", LLAMA, at=7.0, in_flight=0) == EngineLoad(2.0, 5.0, None, 7.0, 0)
    assert metrics_path("vllm") == metrics_path("llamacpp") == "/metrics"


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        ("vllm", b""),
        ("vllm", LLAMA),
        ("vllm", VLLM.replace(b"} 3.0", b"} many")),
        ("vllm", b"vllm:num_requests_running 3.0\n"),
        *(("vllm", VLLM.replace(b"} 3.0", b"} %b" % odd)) for odd in (b"NaN", b"+Inf", b"-9", b"1e999")),
        ("vllm", VLLM.replace(b"} 0.25", b"} NaN")),
        ("llamacpp", b"\xff\xfe"),
        ("external", VLLM),
        ("", VLLM),
    ],
)
def test_what_says_nothing_is_no_load_of_zero(engine: str, body: bytes) -> None:
    assert read_load(engine, body, at=0.0, in_flight=0) is None
