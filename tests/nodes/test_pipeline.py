"""A pipeline of two stages over two nodes: placed together, met, served by its head, ended as one."""

from typing import Any

import pytest

from tests.fakes.vllm.image import ANSWER
from tests.nodes.fleet import Fleet
from tests.nodes.machine import Machine
from tests.nodes.servers import any_server
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

TOLD = ("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")
PRINT = f"import json, os; print(json.dumps([os.environ.get(name) for name in {TOLD!r}]))"


def start(fleet: Fleet, image: str) -> str:
    """Two stages of two cards each, so that either takes a whole node."""
    task = {"image": image, "gpu_required": 2, "model_path": str(fleet.model.parent)}
    group = fleet.create("chain", task, parallelism="pipeline_parallel", world_size=4)
    fleet.await_running(group)
    return group


def of(fleet: Fleet, task: dict[str, Any]) -> Machine:
    return fleet.machines[task["node"]]


@pytest.mark.req("PAR-03", "AGENT-06", "AGENT-15", "SCHED-02")
def test_two_stages_meet_and_the_head_serves_until_one_of_them_dies(fleet: Fleet, vllm: str) -> None:
    with fleet.only("one", "two"):
        group = start(fleet, vllm)
        stages = fleet.tasks(group)
        assert {task["node"] for task in stages} == {"one", "two"}
        head, last = stages
        host = of(fleet, head).engine.address
        held = fleet.stack.rows(f"SELECT number, container_port FROM fleet_port WHERE owner = '{head['id']}'")
        ports = {inside: number for number, inside in held}
        assert set(ports) == {0, 8000} and fleet.ports_of(last) == []
        for rank, task in enumerate(stages):
            machine = of(fleet, task)
            told = machine.run_inside(task["id"], PRINT)
            assert told == [str(rank), "4", str(rank), "2", "2", host, str(ports[0])]
            made = machine.api.inspect_container(task["id"])["HostConfig"]
            assert (made["NetworkMode"], made["IpcMode"], made["Privileged"]) == ("host", "host", False)
        assert fleet.await_answer("chain") == ANSWER
        served = fleet.member.call("GET", f"/api/v1/task-groups/{group}")
        assert served["replicas"] == {"current": 1, "ready": 1, "min": 1, "max": 1}

        of(fleet, last).api.kill(last["id"])
        until(lambda: all_again(fleet, group), lambda: fleet.told("one") + fleet.told("two"), 60)
        assert fleet.await_answer("chain") == ANSWER


def all_again(fleet: Fleet, group: str) -> bool:
    return all(task["status"] == "running" and task["attempt"] > 1 for task in fleet.tasks(group))


@any_server
@pytest.mark.req("PAR-03", "SLEEP-01", "SLEEP-02", "LIFE-04")
def test_the_stages_sleep_wake_and_stop_as_one(fleet: Fleet, vllm: str) -> None:
    with fleet.only("two", "three"):
        group = start(fleet, vllm)
        before = [of(fleet, task).containers(task["id"]) for task in fleet.tasks(group)]
        last = fleet.tasks(group)[1]
        fleet.member.call("POST", f"/api/v1/tasks/{last['id']}/sleep")
        await_all(fleet, group, "sleeping")
        fleet.member.call("POST", f"/api/v1/tasks/{last['id']}/wake?wait=0")
        fleet.await_running(group)
        stages = fleet.tasks(group)
        assert [of(fleet, task).containers(task["id"]) for task in stages] == before
        assert fleet.await_answer("chain") == ANSWER
        fleet.member.call("POST", f"/api/v1/tasks/{last['id']}/stop")
        await_all(fleet, group, "stopped")


def await_all(fleet: Fleet, group: str, status: str) -> None:
    def all_are() -> bool:
        return {task["status"] for task in fleet.tasks(group)} == {status}

    until(all_are, lambda: f"{fleet.tasks(group)}\n{fleet.stack.printed()[-3000:]}", 60)
