"""Slow is told from sick, with real containers of a fake vLLM (AGENT-08)."""

import contextlib
import http.client

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import HealthCheck
from agent.contract.states import Observed, Phase
from tests.agent.docker.services import QUICK, Service, service
from tests.fakes.vllm.image import order

__all__ = ["service"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]
SLOW = HealthCheck(type="engine", interval_seconds=0.3, unhealthy_threshold=3, start_period_seconds=5)


@pytest.mark.req("AGENT-08")
async def test_slow_load_with_visible_progress_is_waited_for(service: Service) -> None:
    await service.serve(health_check=SLOW, env={"FAKE_VLLM_LOAD_S": "8"})
    assert [r.phase for r in service.told()] == [Phase.CLAIMED, Phase.CREATING, Phase.LOADING, Phase.READY]


@pytest.mark.req("AGENT-08")
@pytest.mark.parametrize("progress", [True, False])
async def test_load_without_an_end_is_told_from_one_without_progress(
    service: Service, progress: bool
) -> None:
    env = {"FAKE_VLLM_LOAD_S": "600", "FAKE_VLLM_LOAD_TELLS": str(progress).lower()}
    await service.machine.start(**QUICK, LOAD_CAP_S="12")
    service.machine.want(service.spec(health_check=SLOW, env=env))
    await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "it failed")
    why = service.told(observed=Observed.EXITED)[0].reason
    assert why is not None and why.code is Code.LOAD_TIMEOUT
    # by the hard cap, or by three failures with nothing new in the log
    assert ("failures" in why.params) is not progress


@pytest.mark.req("AGENT-08")
@pytest.mark.parametrize("kind", ["engine", "http"])
async def test_token_counter_that_stands_still_under_requests(service: Service, kind: str) -> None:
    check = HealthCheck(type=kind, interval_seconds=0.3, start_period_seconds=20)
    await service.serve(agent={"STALL_CPU_S": "2"}, health_check=check)
    order(service.port, frozen=True)
    async with service.request():
        if kind == "engine":
            await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "it is sick")
            why = service.told(observed=Observed.EXITED)[0].reason
            assert why is not None and (why.code, why.params["requests"]) == (Code.STALLED, 1)
        else:
            await service.pass_heartbeats(8)
            assert service.told()[-1].phase is Phase.READY


@pytest.mark.req("AGENT-08")
async def test_still_counter_without_requests_is_no_sign(service: Service) -> None:
    await service.serve(agent={"STALL_CPU_S": "1"})
    order(service.port, frozen=True)
    await service.pass_heartbeats(6)
    assert service.told()[-1].phase is Phase.READY


@pytest.mark.req("AGENT-08", "AGENT-09")
async def test_exit_of_its_own_is_told_with_its_code(service: Service) -> None:
    await service.serve()
    with contextlib.suppress(OSError, http.client.HTTPException):
        order(service.port, exit_code=3)
    await service.machine.wait_for(lambda: service.told(observed=Observed.EXITED), "told")
    (report,) = service.told(observed=Observed.EXITED)
    assert (report.exit_code, report.reason) == (3, reason(Code.EXITED, exit_code=3))
