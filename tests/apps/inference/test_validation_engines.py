"""What a creation request says of engines: its type, which engine, and what goes with which."""

from typing import Any

import pytest

from tests.apps.inference.bodies import check, refusals


@pytest.mark.req("SVC-03", "ENG-02")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "inference"),
        ({"enable_api": False, "task.image": "team/thing:1", "task.engine": "vllm"}, "inference"),
        ({"task.model_path": "", "task.image": "team/thing:1", "task.command": ["x"]}, "inference"),
        ({"task.model_path": "", "enable_api": False, "task.command": ["x"]}, "inference"),
        (
            {"task.model_path": "", "enable_api": False, "task.image": "ubuntu:24.04", "task.command": ["x"]},
            "container",
        ),
        ({"task_type": "training"}, "training"),
        ({"task_type": "container"}, "container"),
    ],
)
def test_an_explicit_type_wins_and_signs_of_inference_decide_else(
    changes: dict[str, Any], expected: str
) -> None:
    assert check(changes).task_type == expected


@pytest.mark.req("KV-03")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"task_type": "training"}, "not_offered"),
        ({"task.engine": "llamacpp"}, "not_offered"),
        ({"task.command": ["x"]}, "not_offered"),
        ({}, "not_yet_offered"),
    ],
)
def test_kv_offload_goes_with_vllms_own_command_line_only(changes: dict[str, Any], code: str) -> None:
    assert refusals({"task.kv_offload_gb": 8, **changes}) == [("task.kv_offload_gb", code)]


@pytest.mark.req("ENG-02")
def test_the_engine_label_counts_like_the_field() -> None:
    assert check({"labels": {"heteroflow.engine": "llamacpp"}})
    wrong = refusals({"labels": {"heteroflow.engine": "ollama"}})
    assert wrong == [("labels.heteroflow.engine", "not_a_choice")]


def test_an_option_that_the_engine_cannot_carry_is_refused_before_anything_starts() -> None:
    changes = {"task.engine": "llamacpp", "task.env": {"LLAMA_ARG_CTX_SIZE": "lots"}}
    assert refusals(changes) == [("task.env.LLAMA_ARG_CTX_SIZE", "bad_engine_option")]


@pytest.mark.req("SVC-10", "ENG-02")
def test_a_model_whose_engine_nothing_tells_is_refused_before_it_starts_as_a_plain_container() -> None:
    assert refusals({"task.image": "team/thing:1"}) == [("task.engine", "engine_not_told")]
    assert check({"task.image": "team/thing:1", "task.command": ["serve"]})
