"""A port that something else of the node holds: waited for, then left for another where nobody fixed it."""

from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import ClaimGranted, ClaimRefused, PortMapping
from agent.contract.states import Observed, Phase
from agent.errors import ServerUnreachable
from agent.runtime.base import PortBusy
from tests.agent.fakes import World, make_spec
from tests.agent.test_sleeping import fall_asleep


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.req("AGENT-07")
async def test_after_the_wait_another_port_is_asked_for_where_nobody_fixed_it(world: World) -> None:
    world.runtime.start_errors = [PortBusy(20001)] * 100
    world.specs["task-a", 1] = make_spec(ports=[PortMapping(8080, 20001, movable=True)])
    world.list(world.want())
    await world.go(118, steps=118)
    assert len(world.claims) == 1 and world.runtime.started == []
    world.runtime.start_errors = [PortBusy(20001), PortBusy(20002)]
    ports = [PortMapping(8080, port, movable=True) for port in (20002, 20003)]
    world.claim_answers = [ServerUnreachable("away"), *(ClaimGranted(make_spec(ports=[p])) for p in ports)]
    for _ in range(40):
        assert [r.task_id for r in world.supervisor.running()] == ["task-a"]  # or the server would end it
        await world.go(1)
    assert [claim.busy_ports for claim in world.claims] == [[], [20001], [20001], [20001, 20002]]
    assert world.runtime.started[-1].ports == [ports[1]]
    assert world.supervisor.running()[0].host_ports == [20003]
    assert world.reports.told[-1].phase is Phase.READY


@pytest.mark.req("AGENT-07")
@pytest.mark.parametrize("answer", ["the same port", "none any more"])
async def test_where_no_other_port_is_to_be_had_the_start_has_failed(world: World, answer: str) -> None:
    """A server of another version gives the same port again; one that moved the task on refuses."""
    movable = make_spec(ports=[PortMapping(8080, 20001, movable=True)])
    world.runtime.start_errors = [PortBusy(20001)] * 200
    world.claim_answers = [ClaimGranted(movable)]
    world.claim_answers.append(
        ClaimGranted(movable) if answer == "the same port" else ClaimRefused(reason(Code.CLAIM_LOST))
    )
    world.list(world.want())
    await world.go(125, steps=125)
    assert len(world.claims) == 2
    if answer == "the same port":
        assert world.reports.told[-1].why == reason(Code.PORT_CONFLICT, port=20001)
    assert world.supervisor.running() == []


@pytest.mark.req("SLEEP-02", "SLEEP-03", "AGENT-07")
async def test_port_that_stays_busy_at_the_wake_is_left_for_another_in_a_new_container(world: World) -> None:
    port = PortMapping(8080, 20001, movable=True)
    world.specs["task-a", 1] = make_spec(engine="vllm", sleep_enabled=True, ports=[port])
    world.runtime.outlives_agent = True
    await fall_asleep(world)
    world.runtime.start_errors = [PortBusy(20001)] * 1000
    world.list(world.want())
    await world.go(140, steps=280)
    gone = next(t for t in world.reports.told if t.observed is Observed.GONE)
    assert gone.why == reason(Code.PORT_CONFLICT, port=20001)
    await world.go(140, steps=280)
    assert world.claims[-1].busy_ports == [20001]
