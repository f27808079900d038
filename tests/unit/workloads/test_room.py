"""The last word before a placement is written: each rule by itself, and all or none of several."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.workloads.policy.room import Asked, HeldCard, HeldNode, Ledger, Rule, Share

A, B, C = 1, 2, 3  # tenants; A and B share, C shares with nobody


def may_share(one: int, other: int) -> bool:
    return {one, other} == {A, B}


def ledger(*shares: Share, node: HeldNode | None = None, **card: Any) -> Ledger:
    held = HeldCard(node_id=7, **{"shares": list(shares), **card})
    nodes = {7: node or HeldNode(), 8: HeldNode()}
    cards = {1: held, 2: HeldCard(node_id=7), 3: HeldCard(node_id=8)}
    return Ledger(nodes, cards, may_share=may_share, limit_percent=90)


def asked(task: int = 1, **more: Any) -> Asked:
    return Asked(**{"task_id": task, "tenant_id": A, "node_id": 7, "cards": (1,), **more})


def half(task: int = 50, tenant: int = A, **more: Any) -> Share:
    return Share(task, tenant, **{"percent": 45, **more})


FITS: dict[str, tuple[Ledger, Asked]] = {
    "an empty card": (ledger(), asked()),
    "no card at all": (ledger(), asked(cards=())),
    "the rest of a card": (ledger(half()), asked(percent=45)),
    "beside one that is not counted": (ledger(half(percent=80, counted=False)), asked(percent=45)),
    "one that is not counted": (ledger(half(percent=80)), asked(percent=45, counted=False)),
    "beside a tenant that shares": (ledger(half(tenant=B)), asked(percent=45)),
    "room that is kept for itself": (ledger(Share(1, A, kept=True)), asked()),
    "training on a sleeper's card": (
        ledger(half(lendable=True), half(51, lendable=True)),
        asked(inference=False, borrowed=True),
    ),
    "below the cap": (ledger(node=HeldNode(inference=7, inference_cap=8)), asked()),
    "what the cap does not count": (
        ledger(node=HeldNode(inference=8, inference_cap=8)),
        asked(counted=False),
    ),
    "training at the cap": (ledger(node=HeldNode(inference=8, inference_cap=8)), asked(inference=False)),
    "a stranger on another card": (ledger(node=HeldNode(tenants=frozenset({C}))), asked()),
    "several cards where nothing is shared": (
        ledger(node=HeldNode(tenants=frozenset({C}), host_ipc=False)),
        asked(cards=(1, 2)),
    ),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.req("SCHED-05", "SCHED-06", "SCHED-08", "SCHED-09", "SCHED-16", "SHARE-04")
def test_it_fits(name: str) -> None:
    book, one = FITS[name]
    assert book.book([one]) is None


REFUSED: dict[str, tuple[Rule, Ledger, Asked]] = {
    "a card of another node": (Rule.CARD_GONE, ledger(), asked(cards=(3,))),
    "a card that nobody knows": (Rule.CARD_GONE, ledger(), asked(cards=(9,))),
    "a card in quarantine": (Rule.CARD_GONE, ledger(usable=False), asked()),
    "a closed node": (Rule.NODE_CLOSED, ledger(node=HeldNode(usable=False)), asked()),
    "a node that is gone": (Rule.NODE_CLOSED, ledger(), asked(node_id=9)),
    "alone beside another": (Rule.COMMITMENT, ledger(half()), asked()),
    "beside one that is alone": (Rule.COMMITMENT, ledger(Share(50, A)), asked(percent=10)),
    "more than is left": (Rule.COMMITMENT, ledger(half()), asked(percent=46)),
    "more than may be promised": (Rule.COMMITMENT, ledger(), asked(percent=91)),
    "beside training": (Rule.KIND, ledger(half(inference=False)), asked(percent=10)),
    "beside a borrower": (
        Rule.KIND,
        ledger(half(), Share(51, A, inference=False, borrowed=True)),
        asked(percent=5),
    ),
    "beside a stranger": (Rule.RED_LINE, ledger(half(tenant=C)), asked(percent=10)),
    "room that is kept": (Rule.COMMITMENT, ledger(Share(50, A, kept=True)), asked(percent=10)),
    "a share of room that is kept": (Rule.COMMITMENT, ledger(half(kept=True)), asked(percent=46)),
    "a card of one that is awake": (Rule.NOT_LENT, ledger(half()), asked(inference=False, borrowed=True)),
    "a stranger's sleeping card": (
        Rule.RED_LINE,
        ledger(half(tenant=C, lendable=True)),
        asked(inference=False, borrowed=True),
    ),
    "inference that would borrow": (Rule.NOT_LENT, ledger(half(lendable=True)), asked(borrowed=True)),
    "at the cap": (Rule.INFERENCE_CAP, ledger(node=HeldNode(inference=8, inference_cap=8)), asked()),
    "where nothing may stand": (Rule.INFERENCE_CAP, ledger(node=HeldNode(inference_cap=0)), asked()),
    "a stranger with the host's network there": (
        Rule.RED_LINE,
        ledger(node=HeldNode(tenants=frozenset({C}), host_wide=frozenset({C}))),
        asked(),
    ),
    "the host's network beside a stranger": (
        Rule.RED_LINE,
        ledger(node=HeldNode(tenants=frozenset({B, C}), host_ipc=False)),
        asked(host_network=True),
    ),
    "the host's IPC beside a stranger": (
        Rule.RED_LINE,
        ledger(node=HeldNode(tenants=frozenset({C}), host_ipc=True)),
        asked(cards=(1, 2)),
    ),
    "several cards where nobody told of IPC": (
        Rule.RED_LINE,
        ledger(node=HeldNode(tenants=frozenset({C}))),
        asked(cards=(1, 2)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.req("SCHED-05", "SCHED-06", "SCHED-08", "SCHED-09", "SCHED-12", "SHARE-04", "SHARE-05")
def test_it_does_not_fit(name: str) -> None:
    rule, book, one = REFUSED[name]
    assert book.book([one]) is rule
    assert book.shares(1) == REFUSED[name][1].shares(1)


def _second_is_alone(book: Ledger) -> Rule | None:
    return book.book([asked(1, percent=45), asked(2)])


def _second_is_a_stranger(book: Ledger) -> Rule | None:
    return book.book([asked(1, percent=45), asked(2, tenant_id=C, percent=45)])


def _second_meets_the_host_wide(book: Ledger) -> Rule | None:
    return book.book([asked(1, host_network=True), asked(2, tenant_id=C, cards=(2,))])


@pytest.mark.req("SCHED-02", "SCHED-12")
@pytest.mark.parametrize("both", [_second_is_alone, _second_is_a_stranger, _second_meets_the_host_wide])
def test_of_several_all_or_none(both: Callable[[Ledger], Rule | None]) -> None:
    book = ledger()
    assert both(book) is not None
    assert book.shares(1) == book.shares(2) == ()
    assert book.book([asked(3, tenant_id=C, cards=(1, 2))]) is None


@pytest.mark.req("SCHED-12")
def test_what_was_booked_counts_for_the_next() -> None:
    book = ledger(node=HeldNode(inference_cap=2))
    assert book.book([asked(1, percent=45)]) is None
    assert book.book([asked(2, percent=46)]) is Rule.COMMITMENT
    assert book.book([asked(3, percent=45)]) is None
    assert book.book([asked(4, cards=(2,))]) is Rule.INFERENCE_CAP


@pytest.mark.req("SHARE-04")
def test_what_was_borrowed_is_not_lent_again() -> None:
    book = ledger(half(lendable=True))
    assert book.book([asked(1, inference=False, borrowed=True)]) is None
    assert book.book([asked(2, inference=False, borrowed=True)]) is Rule.NOT_LENT
    assert book.book([asked(3, percent=10)]) is Rule.KIND


@pytest.mark.req("SCHED-11")
def test_kept_room_is_gone_once_its_task_stands_there() -> None:
    book = ledger(Share(1, A, percent=45, kept=True))
    assert book.book([asked(1, percent=45)]) is None
    assert [share.kept for share in book.shares(1)] == [False]
