"""Whether a backend that has failed gets calls again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.circuit import Circuit, Failure, Verdict
from apps.gateway.plane.core.config import GatewayConfig

pytestmark = pytest.mark.req("GW-08")
CONFIG = GatewayConfig(
    sideline_s=5,
    circuit_pause_s=1,
    circuit_pause_max_s=30,
    circuit_refusals=3,
    circuit_failures=3,
    circuit_window=10,
)


def make_circuit(**changes: object) -> Circuit:
    return Circuit(1, msgspec.structs.replace(CONFIG, **changes))


def test_one_refused_connection_passes_it_over_and_any_answer_brings_it_back() -> None:
    circuit = make_circuit()
    assert circuit.verdict(0) is Verdict.FREE
    circuit.fail(Failure.REFUSED, 0)
    assert [circuit.verdict(at) for at in (0, 4.9, 5)] == [Verdict.PASSED, Verdict.PASSED, Verdict.TRIAL]
    circuit.succeed(trial=False)
    assert circuit.verdict(1) is Verdict.FREE


def test_refusals_in_a_row_open_it_until_a_trial_succeeds() -> None:
    circuit = make_circuit()
    for _ in range(3):
        circuit.fail(Failure.REFUSED, 0)
    assert circuit.verdict(0.9) is Verdict.OPEN
    assert circuit.verdict(1) is Verdict.TRIAL and circuit.wants_trial(1)
    circuit.begin_trial()
    assert circuit.verdict(1) is Verdict.OPEN and not circuit.wants_trial(1), "one call tries it, not all"
    circuit.fail(Failure.REFUSED, 6)
    assert circuit.verdict(6.9) is Verdict.OPEN
    assert circuit.verdict(7) is Verdict.TRIAL, "nobody is refused longer because it was long away"
    circuit.begin_trial()
    circuit.succeed(trial=True)
    assert circuit.verdict(8) is Verdict.FREE
    circuit.fail(Failure.REFUSED, 20)
    assert circuit.verdict(20) is Verdict.PASSED, "the row began anew"
    assert circuit.verdict(25) is Verdict.TRIAL, "and the pause, too"


@pytest.mark.parametrize(
    ("kind", "expected"), [(Failure.ERROR, [5, 10, 20, 30, 30, 30]), (Failure.REFUSED, [1, 1, 1, 1, 1, 1])]
)
def test_pauses_grow_up_to_a_limit_where_others_stand_in(kind: Failure, expected: list[float]) -> None:
    circuit, now, pauses = make_circuit(circuit_refusals=1, circuit_failures=1), 0.0, []
    for _ in expected:
        circuit.fail(kind, now)
        began = now
        while not circuit.wants_trial(now):
            now += 0.5
        pauses.append(now - began)
        circuit.begin_trial()
    assert pauses == expected


def test_an_answer_between_ends_the_row() -> None:
    circuit = make_circuit(circuit_failures=100)
    for _ in range(5):
        circuit.fail(Failure.REFUSED, 0)
        circuit.fail(Failure.REFUSED, 0)
        assert circuit.verdict(0) is Verdict.PASSED
        circuit.succeed(trial=False)
        assert circuit.verdict(0) is Verdict.FREE


@pytest.mark.parametrize("kind", [Failure.CLOSED, Failure.BROKEN, Failure.TIMEOUT, Failure.ERROR])
def test_many_failures_among_the_last_calls_pass_it_over_but_never_close_it_off(kind: Failure) -> None:
    circuit = make_circuit()
    for _ in range(2):
        circuit.fail(kind, 0)
        circuit.succeed(trial=False)
    assert circuit.verdict(0) is Verdict.FREE
    circuit.fail(kind, 0)
    assert circuit.verdict(0) is Verdict.PASSED
    circuit.succeed(trial=False)
    assert circuit.verdict(0) is Verdict.PASSED, "calls that were under way don't bring it back"
    assert circuit.verdict(5) is Verdict.TRIAL
    circuit.begin_trial()
    circuit.fail(kind, 6)
    assert circuit.verdict(15.9) is Verdict.PASSED
    circuit.begin_trial()
    circuit.succeed(trial=True)
    assert circuit.verdict(16) is Verdict.FREE


def test_old_failures_are_forgotten() -> None:
    circuit = make_circuit()
    for _ in range(20):
        circuit.fail(Failure.ERROR, 0)
        for _ in range(9):
            circuit.succeed(trial=False)
    assert circuit.verdict(0) is Verdict.FREE
    circuit.succeed(trial=False)
    assert circuit.is_idle()


def test_a_trial_whose_caller_left_says_nothing() -> None:
    circuit = make_circuit()
    circuit.fail(Failure.REFUSED, 0)
    circuit.begin_trial()
    circuit.end_trial()
    assert circuit.verdict(5) is Verdict.TRIAL


def test_probes_take_it_out_and_bring_it_back() -> None:
    circuit = make_circuit(probe_failures=2)
    circuit.probe(reached=False, well=False)
    assert circuit.verdict(0) is Verdict.FREE, "one may be lost"
    circuit.probe(reached=False, well=False)
    assert circuit.verdict(1e9) is Verdict.OPEN
    circuit.probe(reached=True, well=False)
    assert circuit.verdict(0) is Verdict.PASSED, "it is there, only not well"
    circuit.probe(reached=True, well=True)
    assert circuit.verdict(0) is Verdict.FREE and circuit.is_idle()


def test_a_probe_that_reaches_it_ends_what_refusals_began_but_not_what_calls_suffered() -> None:
    unreachable, failing = make_circuit(), make_circuit()
    for _ in range(3):
        unreachable.fail(Failure.REFUSED, 0)
        failing.fail(Failure.ERROR, 0)
    for circuit in (unreachable, failing):
        circuit.probe(reached=True, well=True)
    assert unreachable.verdict(0) is Verdict.FREE
    assert failing.verdict(0) is Verdict.PASSED


def test_good_probes_do_not_hide_that_calls_fail() -> None:
    circuit = make_circuit(circuit_failures=3, circuit_window=20)
    for _ in range(3):
        circuit.fail(Failure.ERROR, 0)
        circuit.probe(reached=True, well=True)
    assert circuit.verdict(0) is Verdict.PASSED


STEPS = st.lists(
    st.tuples(st.sampled_from([*Failure, "ok", "good probe", "bad probe", "left"]), st.floats(0, 20)),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_it_is_tried_again_in_the_end(steps: list[tuple[str, float]]) -> None:
    """Never stuck: after the longest pause and a good probe a call goes there, and its success frees it."""
    circuit, now = make_circuit(), 0.0
    for step, pause in steps:
        now += pause
        trial = circuit.wants_trial(now)
        if step == "good probe":
            circuit.probe(reached=True, well=True)
        elif step == "bad probe":
            circuit.probe(reached=False, well=False)
        else:
            if trial:
                circuit.begin_trial()
            if step == "ok":
                circuit.succeed(trial=trial)
            elif step == "left":
                circuit.end_trial()
            else:
                circuit.fail(Failure(step), now)
    now += CONFIG.circuit_pause_max_s
    circuit.probe(reached=True, well=True)
    assert circuit.verdict(now) in (Verdict.FREE, Verdict.TRIAL)
    circuit.succeed(trial=circuit.wants_trial(now))
    assert circuit.verdict(now) is Verdict.FREE
