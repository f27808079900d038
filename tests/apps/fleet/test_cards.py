"""Cards as heartbeats tell them: which are there, what is read of them, and what is no answer."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.messages import CardReport
from apps.fleet.models import Card, CardSample
from apps.fleet.services import cards
from apps.fleet.services.measures import changed_enough
from tests import factories
from tests.apps.fleet.test_heartbeats import NOW, beat, card

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    """A node that has joined and never spoken."""
    return factories.make_node(cards=0, last_seen_at=None, incarnation="", runtime="", engines=[], dial={})


@pytest.mark.req("AGENT-01")
def test_cards_that_vanish_stay_as_rows_and_return(node):
    beat(node, 1, cards=[card(0), card(1)])
    beat(node, 2, cards=[CardReport("GPU-1", 0, "nvidia", "L40S")])
    assert list(Card.objects.filter(node=node).values_list("uuid", "index", "present").order_by("uuid")) == [
        ("GPU-0", 0, False),
        ("GPU-1", 0, True),
    ]
    beat(node, 3, cards=[card(0), card(1)])
    assert Card.objects.filter(node=node, present=True).count() == 2


@pytest.mark.req("AGENT-01")
def test_cards_of_a_driver_that_does_not_answer_have_not_vanished(node):
    beat(node, 1, cards=[card()])
    beat(node, 2, cards=[], cards_unknown=True)
    assert node.cards.get().present


def test_what_could_not_be_read_is_neither_zero_nor_a_change(node):
    beat(node, 1, cards=[card(driver_version="570", compute_capability="8.9")])
    beat(node, 2, cards=[card(vram_total_mb=None, vram_used_mb=None)])
    row = Card.objects.get(node=node)
    assert (row.vram_total_mb, row.driver_version, row.compute_capability) == (46068, "570", "8.9")
    assert row.sample.vram_used_mb is None


def test_nonsense_from_one_card_takes_no_node_offline(node):
    odd = card(0, vram_used_mb=-1, vram_total_mb=2**40, temperature_c=-(10**6), utilization_percent=-7)
    outcome = beat(node, cards=[odd, card(0), card(1, uuid="u" * 300, model="m\0" * 90), card(2, uuid="\0")])
    assert outcome.accepted
    first, second = Card.objects.filter(node=node).order_by("index")
    assert first.vram_total_mb is None
    sample = first.sample
    assert (sample.vram_used_mb, sample.temperature_c, sample.utilization_percent) == (None, None, None)
    assert second.uuid == "u" * 100 and second.model == "m" * 90


def test_a_node_that_makes_cards_up_fills_no_tables(node, monkeypatch, caplog):
    """Each would be a row that placing reads, and an alert once it is gone."""
    monkeypatch.setattr(cards, "_CARDS_MAX", 3)
    monkeypatch.setattr(cards, "_ROWS_MAX", 5)
    for sequence in range(1, 4):
        made_up = [card(n, uuid=f"GPU-{sequence}-{n}") for n in range(9)]
        assert beat(node, sequence, cards=made_up).accepted
    assert Card.objects.filter(node=node).count() == 5
    assert "too many" in caplog.text
    caplog.clear()
    assert beat(node, 4, cards=[card(0, uuid="GPU-1-0")]).accepted
    assert Card.objects.get(node=node, present=True).uuid == "GPU-1-0"
    assert not caplog.text


def test_readings_are_written_only_when_they_changed_enough(node):
    beat(node, 1)
    at = CardSample.objects.get().sampled_at
    beat(node, 2, now=NOW + timedelta(seconds=5), cards=[card(vram_used_mb=1063)])
    assert CardSample.objects.get().vram_used_mb == 1000 and CardSample.objects.get().sampled_at == at
    beat(node, 3, now=NOW + timedelta(seconds=10), cards=[card(vram_used_mb=1064)])
    assert CardSample.objects.get().vram_used_mb == 1064
    assert CardSample.objects.get().sampled_at == NOW + timedelta(seconds=10)


@given(
    old=st.none() | st.integers(0, 200_000),
    new=st.none() | st.integers(0, 200_000),
    total=st.none() | st.integers(1, 200_000),
)
def test_a_small_drift_is_no_change_and_an_answer_lost_is_one(old, new, total):
    changed = changed_enough(old, new, total)
    assert changed == changed_enough(new, old, total)
    if (old is None) != (new is None):
        assert changed
    elif old == new:
        assert not changed
    elif abs(old - new) >= 64 or (total and abs(old - new) * 100 >= total):
        assert changed
    else:
        assert not changed


@pytest.mark.req("GW-07")
def test_warm_cards_are_told_more_exactly_than_cool_ones(node):
    told = (40, 44, 45, 69, 70, 71, 73, 72)
    for number, (degrees, kept) in enumerate(zip(told, (40, 40, 45, 69, 69, 71, 73, 73), strict=True), 1):
        beat(node, number, cards=[card(temperature_c=degrees)])
        assert CardSample.objects.get().temperature_c == kept
