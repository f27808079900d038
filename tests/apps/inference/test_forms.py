"""Forms of deployment: how many cards and containers each takes, and what goes with a pipeline."""

from typing import Any

import pytest

from apps.core.errors import Invalid
from tests.apps.inference.bodies import ABSENT, check, refusals


@pytest.mark.req("PAR-01")
def test_world_size_is_cards_or_replicas() -> None:
    parallel = check({"parallelism": "tensor_parallel", "task.gpu_required": 4, "world_size": 4})
    assert (parallel.replicas, parallel.gpus) == (1, 4)
    split = check({"parallelism": "split", "task.gpu_required": 2, "world_size": 3})
    assert (split.replicas, split.gpus, split.min_replicas, split.max_replicas) == (3, 6, 1, 3)
    assert check({"world_size": ABSENT, "task.gpu_required": 2}).world_size == 2
    wrong = refusals({"parallelism": "tensor_parallel", "task.gpu_required": 4, "world_size": 1})
    assert wrong == [("world_size", "world_size_mismatch")]
    assert refusals({"parallelism": "split", "world_size": 0}) == [("world_size", "out_of_range")]
    cardless = refusals({"parallelism": "tensor_parallel", "task.gpu_required": 0, "world_size": 0})
    assert cardless == [("task.gpu_required", "out_of_range")]
    assert refusals({"min_replicas": 3, "max_replicas": 2}) == [("min_replicas", "replicas_order")]


STAGES = {
    "parallelism": "pipeline_parallel",
    "world_size": 4,
    "task.gpu_required": 2,
    "task.image": "vllm/vllm-openai:v0.12.0",
    "scale_policy": ABSENT,
    "schedule_window": ABSENT,
}


@pytest.mark.req("PAR-01")
def test_a_pipeline_is_one_replica_of_stages() -> None:
    spec = check(STAGES)
    assert (spec.replicas, spec.world_size, spec.gpus) == (2, 4, 4)
    assert (spec.min_replicas, spec.max_replicas) == (1, 1)
    assert check(STAGES | {"world_size": 6}).replicas == 3
    for wrong in (1, 2, 3, 5, 0):  # of two cards a stage, and two stages at least
        assert refusals(STAGES | {"world_size": wrong}) == [("world_size", "world_size_mismatch")]
    assert refusals(STAGES | {"world_size": ABSENT}) == [("world_size", "required")]
    assert refusals(STAGES | {"task.gpu_required": 0}) == [("task.gpu_required", "out_of_range")]
    assert refusals(STAGES | {"max_replicas": 2, "min_replicas": 2}) == [("min_replicas", "out_of_range")]
    with pytest.raises(Invalid) as caught:
        check(STAGES | {"world_size": 3})
    assert caught.value.errors[0].params["expected"] == "n x task.gpu_required = n x 2, n >= 2"


MINDIE, TRTLLM = "ascend/mindie:2.0", "nvcr.io/nvidia/tensorrt-llm/release:1.0"


@pytest.mark.req("PAR-02")
@pytest.mark.parametrize(
    "changes",
    [
        {"task.engine": "mindie", "task.command": ["serve"]},
        {"labels": {"heteroflow.engine": "mindie"}, "task.command": ["serve"]},
        {"task.image": MINDIE, "task.command": ["serve"]},
        {"task.image": "me/own:1", "task.gpu_type": "Ascend 910B", "task.command": ["serve"]},
        {"task.image": "me/own:1", "task.gpu_type": "910B3", "task.command": ["serve"]},
        {"task.engine": "trtllm", "task.command": ["serve"]},
        {"task.image": TRTLLM, "task.command": ["serve"]},
        {"task.engine": "llamacpp"},
    ],
)
def test_an_engine_of_one_node_takes_no_pipeline(changes: dict[str, Any]) -> None:
    assert ("parallelism", "not_offered") in refusals(STAGES | changes)
    with pytest.raises(Invalid) as caught:
        check(STAGES | changes)
    (why,) = [error.params["why"] for error in caught.value.errors if error.field == "parallelism"]
    assert "single, tensor_parallel, split" in str(why)


@pytest.mark.req("PAR-02")
def test_mindie_takes_the_other_forms_and_others_take_a_pipeline() -> None:
    mindie = {"task.image": MINDIE, "task.command": ["serve"], "task.gpu_required": 2, "world_size": 2}
    for form in ("tensor_parallel", "split", "single"):
        assert check(mindie | {"parallelism": form})
    assert check(STAGES | {"task.gpu_type": "Ascend 910B"})  # vllm is told; where it runs is placing's word
    assert check(STAGES | {"task.image": "me/own:1", "task.command": ["serve"], "task.gpu_type": "A310"})
    training = {"task_type": "training", "task.engine": "", "task.image": "me/own:1", "task.command": ["go"]}
    assert check(STAGES | training | {"task.model_path": "", "enable_api": False}).replicas == 2


@pytest.mark.req("PAR-03")
def test_what_would_tear_the_stages_apart_is_refused() -> None:
    template = {"image": "vllm/vllm-openai:v0.13.0"}
    assert refusals(STAGES | {"inference_templates": [template]}) == [("inference_templates", "not_offered")]
    metrics = [{"name": "queue_length", "target_value": 2}]
    scaled = {"scale_policy": {"enabled": True, "metrics": metrics}}
    assert refusals(STAGES | scaled) == [("scale_policy", "not_offered")]
    window = {"enabled": True, "start": "01:00", "end": "02:00", "action": "scale", "replicas": 1}
    assert refusals(STAGES | {"schedule_window": window}) == [("schedule_window", "not_offered")]
    assert check(STAGES | {"schedule_window": window | {"action": "pause"}})
