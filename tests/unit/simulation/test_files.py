"""Files that can not be used are refused in one sentence: file, field, value, rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.contract.states import TaskType
from apps.scheduling.simulation.files import LARGEST_FILE, BadFile
from apps.scheduling.simulation.fleet import read_fleet
from apps.scheduling.simulation.workload import read_workload
from tests.unit.simulation.worlds import cap_of, fleet_of, nodes, service, training, work, workload_of

pytestmark = pytest.mark.req("SCHED-15")


def refused_fleet(folder: Path, *entries: dict[str, Any], **more: Any) -> str:
    with pytest.raises(BadFile) as caught:
        fleet_of(folder, *entries, **more)
    return str(caught.value).removeprefix(f"{folder}/fleet.yaml: ")


def refused_work(folder: Path, *tasks: dict[str, Any], **more: Any) -> str:
    with pytest.raises(BadFile) as caught:
        workload_of(folder, *tasks, **more)
    return str(caught.value).removeprefix(f"{folder}/workload.yaml: ")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (nodes(count=0), "nodes[0].count is 0: Expected `int` >= 1."),
        (nodes(count="2"), "nodes[0].count is '2': Expected `int`, got `str`."),
        (nodes(colour="red"), "nodes[0]: Object contains unknown field `colour`."),
        ({"name": "n"}, "nodes[0]: Object missing required field `cards`."),
        (nodes(card={"memory_mb": -1}), "nodes[0].cards[0].memory_mb is -1: Expected `int` >= 0."),
        (nodes(runtime="lxc"), "nodes[0].runtime is 'lxc': Invalid enum value 'lxc'."),
        (nodes(cpu_percent=101), "nodes[0].cpu_percent is 101: Expected `float` <= 100.0."),
        (nodes(offline=[[5]]), "nodes[0].offline[0] is [5]: Expected `array` of length 2, got 1."),
        (nodes(offline=[[5, 5]]), "nodes[0].offline[0]: begins at 5 and ends at 5; end it later."),
        (
            nodes(offline=[[5, 9], [8, 10]]),
            "nodes[0].offline[1]: begins at 8, before the one before it ends.",
        ),
        (nodes(pool="lab"), "nodes[0].pool: 'lab' is not among the pools (there is none)."),
        (
            nodes(card={"foreign_mb": 50_000}),
            "nodes[0].cards[0].foreign_mb: 50000 is more than its memory_mb, 48000.",
        ),
        (nodes(cards=200_001), "nodes[0]: the fleet has more than 200,000 cards."),
    ],
)
def test_a_fleet_file_is_refused_by_name(tmp_path: Path, entry: dict[str, Any], sentence: str):
    assert refused_fleet(tmp_path, entry).startswith(sentence.removesuffix("."))


def test_a_fleet_without_nodes_or_with_a_name_twice_is_refused(tmp_path: Path):
    assert refused_fleet(tmp_path) == "nodes: there is none; name at least one."
    assert refused_fleet(tmp_path, nodes(), nodes()) == "nodes[1].name: 'n' stands there twice."


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (work("w", at_s=-1), "tasks[0].at_s is -1: Expected `float` >= 0.0."),
        (work("w", at_s=float("nan")), "tasks[0].at_s is nan: Expected `float` >= 0.0."),
        (
            work("w", at_s=[9, 1]),
            "tasks[0].at_s: is [9.0, 1.0]; a range has two numbers, the smaller one first.",
        ),
        (work("w", at_s=[1]), "tasks[0].at_s: is [1.0]; a range has two numbers, the smaller one first."),
        (work("w", duration_s="long"), "tasks[0].duration_s is 'long': Expected"),
        (work("w", percent=0), "tasks[0].percent is 0: Expected `int` >= 1."),
        (work("w", percent=20, cards=2), "tasks[0].percent: is a promise on one card, and cards is 2."),
        (training("w", percent=20), "tasks[0].percent: is for inference, and task_type is training."),
        (training("w", sleeps=[[1, 2]]), "tasks[0].sleeps: is for inference, and task_type is training."),
        (work("w", stages=2), "tasks[0].stages: is 2 and parallelism single; a pipeline_parallel has two"),
        (
            work("w", parallelism="pipeline_parallel"),
            "tasks[0].stages: is 1 and parallelism pipeline_parallel; a pipeline_parallel has two",
        ),
        (
            work("w", parallelism="pipeline_parallel", stages=2, sleeps=[[1, 2]]),
            "tasks[0].sleeps: is not for pipelines.",
        ),
        (
            work("w", parallelism="pipeline_parallel", stages=2, replicas=2),
            "tasks[0].replicas: is not for pipelines, which have stages.",
        ),
        (
            work("w", parallelism="tensor_parallel"),
            "tasks[0].cards: is 1; tensor_parallel has two or more.",
        ),
        (work("w", models=3), "tasks[0].models: numbers model_path, and that is empty."),
        (work("w", count=1_000_000, replicas=2), "tasks[0]: there are more than 1,000,000 tasks."),
        ({"name": "w"}, "tasks[0]: Object missing required field `tenant`."),
    ],
)
def test_a_workload_file_is_refused_by_name(tmp_path: Path, task: dict[str, Any], sentence: str):
    assert refused_work(tmp_path, task).startswith(sentence.removesuffix("."))


def test_work_of_a_tenant_that_is_not_named_is_refused(tmp_path: Path):
    assert (
        refused_work(tmp_path, work("w"), tenants={"lab": {}}) == "tasks[0].tenant: 'shop' is no tenant here."
    )
    shares = {"shop": {"shares_with": ["lab"]}}
    assert (
        refused_work(tmp_path, work("w"), tenants=shares)
        == "tenants.shop.shares_with: 'lab' is no tenant here."
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("f.yaml", "nodes: [", "line 1: is no YAML: expected the node content, but found '<stream end>'."),
        ("f.json", '{"nodes": ', "line 1: is no JSON: Expecting value."),
        ("f.yaml", "", "the whole file: Expected `object`, got `null`."),
        (
            "f.yaml",
            "!!python/object/apply:os.system [id]",
            "line 1: is no YAML: could not determine a constructor",
        ),
    ],
)
def test_what_is_no_file_of_its_kind_is_refused(tmp_path: Path, name: str, text: str, sentence: str):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadFile) as caught:
        read_fleet(file, cap_of)
    assert str(caught.value).startswith(f"{file}: {sentence.removesuffix('.')}")


def test_a_file_that_is_missing_binary_or_huge_is_refused(tmp_path: Path):
    file = tmp_path / "f.yaml"
    with pytest.raises(BadFile, match="can not be read: No such file or directory"):
        read_fleet(file, cap_of)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="is no text in UTF-8"):
        read_fleet(file, cap_of)
    with file.open("wb") as sparse:
        sparse.truncate(LARGEST_FILE + 1)
    with pytest.raises(BadFile, match="larger than 32 MiB"):
        read_fleet(file, cap_of)


def test_json_reads_as_yaml_does(tmp_path: Path):
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"nodes": [nodes(cards=2, count=2)]}))

    assert read_fleet(file, cap_of) == fleet_of(tmp_path, nodes(cards=2, count=2))


def test_counts_become_nodes_and_cards_with_numbers_of_their_own(tmp_path: Path):
    pair = nodes("pair", cards=4, count=2, card={"linked": 2}, inference_cap=3)
    fleet = fleet_of(tmp_path, pair, nodes("one"))
    views = [machine.view for machine in fleet.machines]

    assert [view.name for view in views] == ["pair-1", "pair-2", "one"]
    assert [card.id for view in views for card in view.cards] == list(range(1, 10))
    assert [card.link_group for card in views[0].cards] == [0, 0, 2, 2]
    assert [view.inference_cap for view in views] == [3, 3, 8]


def test_work_is_drawn_by_its_seed_and_numbered_by_arrival(tmp_path: Path):
    tasks = [
        work("late", at_s=50),
        service("s", at_s=[0, 40], count=5, replicas=2, model_path="/m", models=3),
    ]
    drawn = workload_of(tmp_path, *tasks)

    assert [item.id for item in drawn.items] == list(range(1, 12))
    assert [item.at_s for item in drawn.items] == sorted(item.at_s for item in drawn.items)
    assert drawn.items[-1].name == "late"
    assert {item.model_path for item in drawn.items[:-1]} <= {"/m-1", "/m-2", "/m-3"}
    assert drawn.items[0].model_path == drawn.items[1].model_path  # replicas serve one model
    assert drawn == workload_of(tmp_path, *tasks)
    assert drawn.items != workload_of(tmp_path, *tasks, seed=9).items
    assert read_workload(tmp_path / "workload.yaml", 9).items == workload_of(tmp_path, *tasks, seed=9).items


def test_sharing_holds_in_both_directions(tmp_path: Path):
    tenants = {"shop": {"shares_with": ["lab"]}, "lab": {}, "rival": {}}
    workload = workload_of(tmp_path, work("w"), tenants=tenants)

    assert workload.tenants["lab"].shares_with == {workload.tenants["shop"].id}
    assert workload.tenants["rival"].shares_with == frozenset()
    assert workload.items[0].work.task_type == TaskType.INFERENCE
