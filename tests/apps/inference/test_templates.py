"""inference_templates at creation: their shape, and what may stand in a chain (RECOV-03, ENG-03)."""

from typing import Any

import pytest

from tests.apps.inference.bodies import check, refusals

pytestmark = pytest.mark.req("RECOV-03")
LLAMA = {"image": "ghcr.io/ggml-org/llama.cpp:server"}


def test_each_template_is_kept_with_its_engine_named() -> None:
    own = {"image": "team/thing:1", "command": ["serve", "--port", "8000"], "gpu_type": "RTX 4090"}
    spec = check({"inference_templates": [LLAMA, own]})
    assert spec.inference_templates == [
        {**LLAMA, "engine": "llamacpp", "command": [], "gpu_type": ""},
        {**own, "engine": ""},
    ]
    assert check({}).inference_templates == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({}, ("image", "required")),
        ({"image": "no tag"}, ("image", "bad_image")),
        ({"image": "team/thing:1"}, ("engine", "engine_not_told")),
        ({"image": "lmsysorg/sglang:v1"}, ("image", "not_yet_offered")),
        ({**LLAMA, "engine": "ollama"}, ("engine", "not_a_choice")),
        ({**LLAMA, "env": {"TOKEN": "x"}}, ("env", "unknown_field")),
        ({**LLAMA, "command": "serve"}, ("command", "wrong_type")),
        # a chain never leads to an engine whose model lies in its image (ENG-03)
        ({"image": "nvcr.io/nvidia/tensorrt-llm:1", "command": ["x"]}, ("image", "not_offered")),
        ({"image": "team/thing:1", "engine": "trtllm", "command": ["x"]}, ("engine", "not_offered")),
    ],
)
def test_what_can_not_be_a_template_is_refused_by_its_place(
    template: dict[str, Any], expected: tuple[str, str]
) -> None:
    field, code = expected
    found = refusals({"inference_templates": [LLAMA, template]})
    assert found == [(f"inference_templates[1].{field}", code)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"inference_templates": "x"}, [("inference_templates", "wrong_type")]),
        ({"inference_templates": ["x"]}, [("inference_templates[0]", "wrong_type")]),
        ({"inference_templates": [LLAMA] * 9}, [("inference_templates", "too_many")]),
        (
            {"inference_templates": [LLAMA], "task_type": "training"},
            [("inference_templates", "not_offered")],
        ),
        # the options of the task must be such that each of its engines can carry them
        (
            {"inference_templates": [LLAMA], "task.env": {"LLAMA_ARG_CTX_SIZE": "lots"}},
            [("task.env.LLAMA_ARG_CTX_SIZE", "bad_engine_option")],
        ),
    ],
)
def test_the_list_as_a_whole(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert refusals(changes) == expected
