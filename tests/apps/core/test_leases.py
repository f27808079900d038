"""One holder at a time, and nothing written by one that was overtaken (SCHED-01)."""

import threading
import time

import pytest
from django.db import connection

from apps.core import leases
from apps.core.models import Lease, PublishedVersion
from tests.apps.core.threads import run_at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("SCHED-01")]


def take_after_expiry(name: str, holder: str, ttl_s: float, within_s: float = 10) -> leases.Held:
    """Poll until the lease can be taken."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        held = leases.acquire(name, holder, ttl_s)
        if held is not None:
            return held
        time.sleep(0.02)
    raise AssertionError(f"the lease {name} was never free")


def test_one_of_many_threads_gets_it():
    taken = run_at_once(8, lambda number: leases.acquire("loop", f"h{number}", 60))

    winners = [held for held in taken if held is not None]
    assert len(winners) == 1
    assert Lease.objects.get(name="loop").holder == winners[0].holder


def test_it_can_not_be_taken_while_held():
    assert leases.acquire("loop", "a", 60) is not None
    assert leases.acquire("loop", "a", 60) is None
    assert leases.acquire("other", "b", 60) is not None


def test_after_its_expiry_another_takes_over_with_a_higher_number():
    first = leases.acquire("loop", "a", 0.2)
    assert first is not None
    second = take_after_expiry("loop", "b", 60)

    assert second.fence > first.fence


def test_it_is_not_free_before_its_expiry():
    leases.acquire("loop", "a", 5)
    assert leases.acquire("loop", "b", 5) is None


def test_a_holder_that_was_paused_writes_nothing():
    paused = leases.acquire("loop", "a", 0.1)
    assert paused is not None
    take_after_expiry("loop", "b", 60)

    with pytest.raises(leases.LeaseLost), paused.transaction():
        PublishedVersion.objects.create(name="written-by-a", version=1)
    with pytest.raises(leases.LeaseLost):
        paused.renew(60)
    assert not PublishedVersion.objects.exists()


def test_an_overtaken_holder_loses_even_when_the_same_name_holds_it_again():
    first = leases.acquire("loop", "a", 0.1)
    assert first is not None
    again = take_after_expiry("loop", "a", 60)

    with pytest.raises(leases.LeaseLost), first.transaction():
        pass
    with again.transaction():
        pass


def test_release_by_an_old_holder_does_not_free_the_new_one():
    old = leases.acquire("loop", "a", 0.1)
    assert old is not None
    new = take_after_expiry("loop", "b", 60)
    old.release()

    assert leases.acquire("loop", "c", 60) is None
    with new.transaction():
        pass


def test_release_frees_it_at_once_and_the_number_rises_each_time():
    fences = []
    for holder in "abc":
        held = leases.acquire("loop", holder, 60)
        assert held is not None
        fences.append(held.fence)
        held.release()

    assert fences == sorted(set(fences))


def test_a_released_holder_writes_nothing():
    held = leases.acquire("loop", "a", 60)
    assert held is not None
    held.release()

    with pytest.raises(leases.LeaseLost), held.transaction():
        pass


def test_renewing_keeps_it():
    held = leases.acquire("loop", "a", 0.3)
    assert held is not None
    until = time.monotonic() + 0.9
    while time.monotonic() < until:
        held.renew(0.3)
        assert leases.acquire("loop", "b", 60) is None
        time.sleep(0.05)


def test_what_a_transaction_wrote_is_undone_when_its_body_fails():
    held = leases.acquire("loop", "a", 60)
    assert held is not None
    with pytest.raises(RuntimeError), held.transaction():
        PublishedVersion.objects.create(name="x", version=1)
        raise RuntimeError

    assert not PublishedVersion.objects.exists()


def test_nobody_takes_over_inside_a_holders_transaction():
    """The expiry passes while the holder writes; the takeover waits, so that both never overlap."""
    held = leases.acquire("loop", "a", 0.1)
    assert held is not None
    inside, order = threading.Event(), []

    def overtake() -> None:
        inside.wait(10)
        try:
            take_after_expiry("loop", "b", 60)
            order.append("taken over")
        finally:
            connection.close()

    other = threading.Thread(target=overtake)
    other.start()
    with held.transaction():
        inside.set()
        time.sleep(0.4)  # past the expiry: the length of the write itself, nothing is awaited
        order.append("written")
    other.join(20)

    assert order == ["written", "taken over"]
