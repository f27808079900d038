"""Health is judged by time and probes alone (AGENT-08)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.codes import Code
from agent.contract.messages import HealthCheck
from agent.engines.llamacpp import ENGINE as LLAMACPP
from agent.engines.vllm import ENGINE as VLLM
from agent.supervisor.health import HealthMonitor, Outcome, Probe, Verdict, Work
from agent.supervisor.probe import read_work

pytestmark = pytest.mark.req("AGENT-08")
OK = Probe(Outcome.OK)
LOADING = Probe(Outcome.LOADING, "503")
FAILED = Probe(Outcome.FAILED, "refused")


def monitor(**check: float) -> HealthMonitor:
    return HealthMonitor(
        HealthCheck(**check),  # type: ignore[arg-type]
        started_at=0.0,
        load_cap_s=3600,
        stall_s=120,
        loading_s=0.5,
    )


def test_failures_in_the_start_period_count_for_nothing() -> None:
    health = monitor(start_period_seconds=300)
    for second in range(0, 200, 10):
        assert health.judge(FAILED, now=second) == Verdict()
    assert health.judge(OK, now=200).became_ready
    assert health.judge(OK, now=210) == Verdict()


def test_threshold_failures_after_the_start_period() -> None:
    health = monitor()
    assert health.judge(FAILED, now=59.9).failed is None
    assert health.judge(FAILED, now=60).failed is None
    assert health.judge(FAILED, now=70).failed is None
    failed = health.judge(FAILED, now=80).failed
    assert failed is not None
    assert failed.code is Code.LOAD_TIMEOUT
    assert failed.params["failures"] == 3


def test_start_period_of_zero_means_thirty() -> None:
    health = monitor(start_period_seconds=0, unhealthy_threshold=1)
    assert health.judge(FAILED, now=29.9).failed is None
    assert health.judge(FAILED, now=30).failed is not None


def test_one_missed_probe_is_nothing_and_success_clears() -> None:
    health = monitor()
    health.judge(OK, now=1)
    for start in range(100, 1000, 30):
        assert health.judge(FAILED, now=start).failed is None
        assert health.judge(FAILED, now=start + 10).failed is None
        assert health.judge(OK, now=start + 20).failed is None
    codes = [health.judge(FAILED, now=2000 + i).failed for i in range(3)]
    assert codes[:2] == [None, None]
    assert codes[2] is not None and codes[2].code is Code.UNHEALTHY


@pytest.mark.parametrize(("probe", "progress"), [(LOADING, False), (FAILED, True)])
def test_visible_progress_extends_loading_up_to_the_cap(probe: Probe, progress: bool) -> None:
    health = monitor()
    for second in range(0, 3600, 10):
        assert health.judge(probe, now=second, progress=progress) == Verdict()
    failed = health.judge(probe, now=3600, progress=progress).failed
    assert failed is not None and failed.code is Code.LOAD_TIMEOUT


def test_busy_engine_is_degraded_and_not_dead() -> None:
    health = monitor()
    health.judge(Probe(Outcome.OK, work=Work(0, 0)), now=1)
    for i in range(1, 50):
        slow = Probe(Outcome.FAILED, "no answer in 3 s", Work(steps=i, running=4))
        assert health.judge(slow, now=100 + 10 * i) == Verdict(degraded="no answer in 3 s")


def test_engine_that_answers_health_and_does_no_work_is_stopped() -> None:
    health = monitor()
    health.judge(Probe(Outcome.OK, work=Work(5, 0)), now=0)
    health.judge(Probe(Outcome.OK, work=Work(5, 0)), now=1000)  # idle for long: no sign
    stuck = Probe(Outcome.OK, work=Work(5, 2))
    assert health.judge(stuck, now=1001).failed is None
    assert health.judge(stuck, now=1100).failed is None
    failed = health.judge(stuck, now=1120).failed
    assert failed is not None
    assert (failed.code, failed.params) == (Code.STALLED, {"after_s": 120, "requests": 2})


def test_restarted_counter_is_not_a_stall() -> None:
    health = monitor()
    health.judge(Probe(Outcome.OK, work=Work(500, 1)), now=0)
    assert health.judge(Probe(Outcome.OK, work=Work(3, 1)), now=119).failed is None
    assert health.judge(Probe(Outcome.OK, work=Work(3, 1)), now=200).failed is None


def test_unread_work_says_nothing() -> None:
    health = monitor()
    health.judge(OK, now=0)
    assert health.judge(OK, now=10_000) == Verdict()


def test_sleep_clears_the_count() -> None:
    health = monitor()
    health.judge(OK, now=0)
    health.judge(FAILED, now=100)
    health.judge(FAILED, now=110)
    health.clear()
    assert health.judge(FAILED, now=120).failed is None


def test_probes_are_quick_while_it_loads() -> None:
    health = monitor()
    assert health.pause_s(1) == 0.5
    assert health.pause_s(61) == 10
    health.judge(OK, now=2)
    assert health.pause_s(3) == 10


@given(
    st.lists(
        st.tuples(st.sampled_from([OK, LOADING, FAILED]), st.floats(0.1, 40), st.booleans()), max_size=60
    )
)
def test_nothing_fails_inside_the_start_period_or_before_the_threshold(
    story: list[tuple[Probe, float, bool]],
) -> None:
    health, now, in_a_row = monitor(), 0.0, 0
    for probe, pause, progress in story:
        now += pause
        in_a_row = in_a_row + 1 if probe is not OK else 0
        verdict = health.judge(probe, now=now, progress=progress)
        if verdict.failed is not None:
            assert now >= 60
            assert in_a_row >= 3
            break


def test_work_is_read_from_recorded_metrics() -> None:
    llama = "# HELP x\nllamacpp:n_decode_total 40\nllamacpp:requests_processing 2\n"
    assert read_work(llama, LLAMACPP.metrics) == Work(40, 2)
    vllm = (
        'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:generation_tokens_total{engine="0"} 100.0\nvllm:generation_tokens_total_created 7\n'
    )
    assert read_work(vllm, VLLM.metrics) == Work(100, 3)
    assert read_work("llamacpp:n_decode_total 1\n", LLAMACPP.metrics) is None
    assert read_work("llamacpp:n_decode_total x\nllamacpp:requests_processing 0\n", LLAMACPP.metrics) is None
