"""When a silent node is lost, and when the fault is rather here."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.clock import listening_since
from apps.recovery.policy.silence import Heard, judge

pytestmark = pytest.mark.req("RECOV-02")

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
SILENT_S = 30.0


def heard(number: int, ago_s: float, *, lost: bool = False) -> Heard:
    return Heard(number, NOW - timedelta(seconds=ago_s), LONG_AGO if lost else None)


@pytest.mark.parametrize(("ago_s", "lost"), [(0, ()), (30, ()), (30.1, (1,)), (9999, (1,))])
def test_silence_beyond_the_limit_is_a_loss(ago_s, lost):
    assert judge([heard(1, ago_s), heard(2, 1)], listening=LONG_AGO, now=NOW, silent_s=SILENT_S).lost == lost


def test_one_lost_before_stays_lost_and_is_not_fresh():
    verdict = judge(
        [heard(1, 999, lost=True), heard(2, 40), heard(3, 1)], listening=LONG_AGO, now=NOW, silent_s=SILENT_S
    )

    assert (verdict.lost, verdict.fresh) == ((1, 2), (2,))


def test_silence_counts_only_while_somebody_listened():
    started = NOW - timedelta(seconds=20)
    verdict = judge([heard(1, 5000), heard(2, 1)], listening=started, now=NOW, silent_s=SILENT_S)
    assert verdict.lost == ()

    later = NOW + timedelta(seconds=11)
    assert judge([heard(1, 5000), heard(2, -11)], listening=started, now=later, silent_s=SILENT_S).lost == (
        1,
    )


@pytest.mark.parametrize("ago_s", [31, 301, 10**6])
def test_all_at_once_are_spared_however_long_it_lasts(ago_s):
    verdict = judge([heard(1, ago_s), heard(2, ago_s)], listening=LONG_AGO, now=NOW, silent_s=SILENT_S)

    assert (verdict.lost, verdict.fresh, verdict.held_back) == ((), (), (1, 2))


@pytest.mark.parametrize("nodes", [2, 3, 40])
def test_a_fleet_that_falls_silent_at_once_is_spared_though_its_heartbeats_were_not_in_step(nodes):
    """Judged every 5 s, as by the sweep, while the last heartbeats lie up to 5 s apart."""
    last = [heard(number, -5 * number / nodes) for number in range(nodes)]
    for second in range(1, 300, 5):
        now = NOW + timedelta(seconds=second)
        verdict = judge(last, listening=LONG_AGO, now=now, silent_s=SILENT_S)
        assert (verdict.lost, verdict.fresh) == ((), ())
    assert len(verdict.held_back) == nodes


def test_once_one_of_them_is_heard_again_the_others_are_lost():
    nodes = [heard(1, 999), heard(2, 999), heard(3, 1)]

    assert judge(nodes, listening=LONG_AGO, now=NOW, silent_s=SILENT_S).lost == (1, 2)


def test_a_lone_node_is_lost_like_any_other():
    assert judge([heard(1, 40)], listening=LONG_AGO, now=NOW, silent_s=SILENT_S).lost == (1,)


def test_those_lost_before_do_not_count_among_all():
    """Of three one is lost for long, one is heard: the third is lost by the usual term."""
    nodes = [heard(1, 999, lost=True), heard(2, 1), heard(3, 40)]

    assert judge(nodes, listening=LONG_AGO, now=NOW, silent_s=SILENT_S).lost == (1, 3)


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=8))
def test_a_node_that_was_heard_lately_is_never_freshly_lost(rows):
    nodes = [heard(number, ago, lost=lost) for number, (ago, lost) in enumerate(rows)]
    verdict = judge(nodes, listening=LONG_AGO, now=NOW, silent_s=SILENT_S)

    fresh_and_heard = {node.node_id for node in nodes if NOW - node.last_seen_at <= timedelta(seconds=30)}
    assert not fresh_and_heard & {*verdict.fresh, *verdict.held_back}
    assert set(verdict.fresh) <= set(verdict.lost)
    assert not set(verdict.lost) & set(verdict.held_back)


@pytest.mark.parametrize(
    ("previous_ago_s", "kept"), [(5, True), (15, True), (16, False), (-1, False), (None, False)]
)
def test_a_gap_without_sweeps_starts_the_listening_anew(previous_ago_s, kept):
    previous = None if previous_ago_s is None else NOW - timedelta(seconds=previous_ago_s)

    assert listening_since(previous, LONG_AGO, NOW, gap_s=15) == (LONG_AGO if kept else NOW)


def test_without_a_memory_it_begins_now():
    assert listening_since(NOW - timedelta(seconds=1), None, NOW, gap_s=15) == NOW
