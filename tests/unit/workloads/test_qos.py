"""QoS follows from the card, never from a wish (SHARE-03)."""

from dataclasses import replace

import pytest

from apps.workloads.policy.qos import HeldCard, Qos, derive_qos

pytestmark = pytest.mark.req("SHARE-03")

SLICE = HeldCard("nvidia", 40, mig_capable=True, mps_capable=True, in_container=False)
NO_MIG = replace(SLICE, mig_capable=False)


@pytest.mark.parametrize(
    ("card", "qos"),
    [
        (SLICE, Qos.GOLD),
        (NO_MIG, Qos.SILVER),
        (replace(NO_MIG, mps_capable=False), Qos.BRONZE),
        (replace(SLICE, percent=None), Qos.BRONZE),
        (replace(SLICE, vendor="amd"), Qos.BRONZE),
        (replace(SLICE, in_container=True), Qos.BRONZE),
        (replace(SLICE, in_container=None), Qos.BRONZE),
    ],
)
def test_a_slice_is_as_good_as_its_card_can_make_it(card: HeldCard, qos: Qos) -> None:
    assert derive_qos([card]) is qos


def test_the_least_of_several_counts_and_no_card_is_no_bronze() -> None:
    assert derive_qos([SLICE, NO_MIG]) is Qos.SILVER
    assert derive_qos([]) is None
