"""Whole command lines of the engines, and the engine that an image name tells."""

import msgspec
import pytest

from agent.engines.base import EngineCall, EngineOptionError
from agent.engines.catalog import (
    ENGINES,
    chain_of_type,
    compute_capability_at_least,
    engine_from_image,
    get_engine,
)
from agent.engines.environment import agent_env, user_env

CALL = EngineCall(model_path="/data/models/m", served_model_name="chat", host="127.0.0.1", port=20001)


def call(**changes: object) -> EngineCall:
    return msgspec.structs.replace(CALL, **changes)


def words(line: str) -> list[str]:
    return line.split()


@pytest.mark.req("ENG-01")
def test_llamacpp_on_processors() -> None:
    assert ENGINES["llamacpp"].process_arguments(call(threads=1)) == words(
        "--model /data/models/m --alias chat --host 127.0.0.1 --port 20001 "
        "--ctx-size 4096 --parallel 2 --threads 1 --metrics"
    )


@pytest.mark.req("ENG-01")
def test_llamacpp_on_two_cards_with_all_options() -> None:
    options = {
        "LLAMA_ARG_CTX_SIZE": "8192",
        "LLAMA_ARG_N_PARALLEL": "4",
        "LLAMA_ARG_EMBEDDINGS": "1",
        "LLAMA_ARG_POOLING": "mean",
        "OTHER": "x",
    }
    command = ENGINES["llamacpp"].image_command(call(host="0.0.0.0", gpu_count=2, options=options))
    assert command.entrypoint is None  # the image's own is the server binary
    assert command.arguments == words(
        "--model /data/models/m --alias chat --host 0.0.0.0 --port 20001 --ctx-size 8192 --parallel 4 "
        "--n-gpu-layers 999 --split-mode layer --tensor-split 1,1 --embeddings --pooling mean --metrics"
    )


@pytest.mark.req("ENG-01")
def test_vllm_alone_and_shared() -> None:
    vllm = ENGINES["vllm"]
    assert vllm.process_arguments(call()) == words(
        "serve /data/models/m --served-model-name chat --host 127.0.0.1 --port 20001"
    )
    shared = call(
        tensor_parallel=2,
        memory_percent=40,
        options={"HETEROFLOW_MAX_MODEL_LEN": "4096", "HETEROFLOW_MAX_NUM_SEQS": "16"},
    )
    command = vllm.image_command(shared)
    assert command.entrypoint == ["vllm", "serve"]
    assert command.arguments == words(
        "/data/models/m --served-model-name chat --host 127.0.0.1 --port 20001 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.40 --max-model-len 4096 --max-num-seqs 16"
    )


@pytest.mark.parametrize(
    ("engine", "name", "value"),
    [
        ("llamacpp", "LLAMA_ARG_CTX_SIZE", "many"),
        ("llamacpp", "LLAMA_ARG_CTX_SIZE", "-1"),
        ("llamacpp", "LLAMA_ARG_N_PARALLEL", "0"),
        ("llamacpp", "LLAMA_ARG_EMBEDDINGS", "perhaps"),
        ("llamacpp", "LLAMA_ARG_POOLING", "--host"),
        ("vllm", "HETEROFLOW_MAX_MODEL_LEN", "1e9"),
    ],
)
def test_option_that_no_line_can_carry_is_named(engine: str, name: str, value: str) -> None:
    with pytest.raises(EngineOptionError) as caught:
        ENGINES[engine].process_arguments(call(options={name: value}))
    assert (caught.value.name, caught.value.value) == (name, value)
    assert caught.value.rule


@pytest.mark.req("ENG-02")
@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("vllm/vllm-openai:v0.32.0", "vllm"),
        ("registry.mthreads.com/x/vllm-mtt:1", "vllm-mtt"),
        ("lmsysorg/sglang:latest", "sglang"),
        ("ghcr.io/ggml-org/llama.cpp:server", "llamacpp"),
        ("me/LlamaCpp:p100", "llamacpp"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0", "trtllm"),
        ("me/trtllm:1", "trtllm"),
        ("ascend/mindie:2", "mindie"),
        ("vllm.example.com/me/thing:1", None),
        ("localhost:5000/python:3", None),
        ("python:3.11@sha256:vllm", None),
        ("", None),
    ],
)
def test_engine_from_image(image: str, engine: str | None) -> None:
    assert engine_from_image(image) == engine


@pytest.mark.req("PAR-02", "ENG-02")
@pytest.mark.parametrize("gpu_type", ["Ascend 910B", "ascend910b", "910B3", "Huawei 310P"])
def test_the_chain_of_ascend_cards_is_mindie(gpu_type: str) -> None:
    assert chain_of_type(gpu_type) == ("mindie",)
    assert chain_of_type("NVIDIA A10") == chain_of_type("A310") == chain_of_type("") == ()


def test_engine_known_by_name_only_has_no_builder() -> None:
    assert get_engine("sglang") is None
    assert get_engine("vllm") is ENGINES["vllm"]


def test_compute_capability_is_compared_as_numbers() -> None:
    assert compute_capability_at_least("10.0", "7.5") is True
    assert compute_capability_at_least("7.0", "7.5") is False
    assert compute_capability_at_least(None, "7.5") is None
    assert compute_capability_at_least("?", "7.5") is None
    assert compute_capability_at_least(None, None) is True


@pytest.mark.req("SLEEP-01")
@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"gpu_vendor": "nvidia", "gpu_count": 1, "sleep_enabled": True}, True),
        ({"gpu_vendor": "nvidia", "gpu_count": 1}, False),
        # where the platform does not know the flag it stops the start
        ({"gpu_vendor": "amd", "gpu_count": 1, "sleep_enabled": True}, False),
        ({"gpu_vendor": "amd", "sleep_enabled": True, "options": {"HETEROFLOW_SLEEP_MODE": "1"}}, True),
        ({"gpu_vendor": "hygon", "sleep_enabled": True, "options": {"HETEROFLOW_SLEEP_MODE": "1"}}, False),
        ({"sleep_enabled": True}, False),
    ],
)
def test_sleep_mode_of_vllm_by_platform(changes: dict[str, object], flag: bool) -> None:
    line = ENGINES["vllm"].process_arguments(call(**changes))
    assert ("--enable-sleep-mode" in line) is flag
    assert "--enable-sleep-mode" not in ENGINES["llamacpp"].process_arguments(call(**changes))


@pytest.mark.req("AGENT-04")
def test_agents_own_variables_of_the_user_are_dropped() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "7",
        "cuda_visible_devices": "7",
        "HETEROFLOW_TASK_ID": "task-other",
        "VLLM_SERVER_DEV_MODE": "1",
        "A=B": "x",
        "NUL": "a\0b",
        "MINE": "kept",
    }
    kept, dropped = user_env(given)
    assert kept == {"MINE": "kept"}
    assert dropped == sorted(set(given) - {"MINE"})


@pytest.mark.req("AGENT-04", "AGENT-17")
def test_dev_mode_is_for_the_vllm_family_with_sleep_only() -> None:
    def env(engine: str, sleep: bool) -> dict[str, str]:
        return agent_env(
            ENGINES[engine],
            task_id="task-a",
            attempt=2,
            gpu_vendor="nvidia",
            gpu_uuids=["GPU-1", "GPU-2"],
            engine_key="k",
            sleep_enabled=sleep,
        )

    assert env("vllm", True)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in env("vllm", False)
    assert "VLLM_SERVER_DEV_MODE" not in env("llamacpp", True)
    assert env("vllm", False) == {
        "HETEROFLOW_TASK_ID": "task-a",
        "HETEROFLOW_ATTEMPT": "2",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "VLLM_API_KEY": "k",
    }


@pytest.mark.req("AGENT-04")
def test_task_without_cards_sees_none() -> None:
    env = agent_env(
        ENGINES["llamacpp"], task_id="task-a", attempt=1, gpu_vendor="", gpu_uuids=[], engine_key=""
    )
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "LLAMA_API_KEY" not in env
