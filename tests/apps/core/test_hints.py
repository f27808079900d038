"""Hints are sent after commit, in order, and never hold whoever gave them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import current_app
from django.db import transaction

from apps.core import hints

pytestmark = pytest.mark.django_db(transaction=True)


def wait_for(condition: Callable[[], bool], within_s: float = 20) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


class Broker:
    """Stands for Celery's sending: hangs while `open` is clear, then records."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.sent: list[str] = []
        self.failures = 0

    def send_task(self, name: str, **options: Any) -> None:
        self.entered.set()
        assert self.open.wait(60)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no broker")
        self.sent.append(name)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Broker]:
    settings.HINTS_INLINE = False
    broker = Broker()
    monkeypatch.setattr(current_app._get_current_object(), "send_task", broker.send_task)
    yield broker
    broker.open.set()
    wait_for(hints._queue.empty)


def test_a_hanging_broker_holds_nobody_and_what_does_not_fit_is_counted(broker: Broker):
    before = hints.dropped()
    hints.kick("first")
    assert broker.entered.wait(20)

    started = time.monotonic()
    for _ in range(hints.QUEUE_LENGTH + 25):
        hints.kick("more")
    assert time.monotonic() - started < 100  # a second each would be 1025 s
    assert hints.dropped() - before == 25

    broker.open.set()
    wait_for(lambda: len(broker.sent) == hints.QUEUE_LENGTH + 1)
    assert broker.sent[0] == "first"


def test_a_broker_that_fails_costs_that_hint_only(broker: Broker):
    before = hints.dropped()
    broker.failures = 2
    broker.open.set()
    for name in ("a", "b", "c"):
        hints.kick(name)

    wait_for(lambda: broker.sent == ["c"])
    assert hints.dropped() - before == 2


def test_a_kick_is_sent_after_commit_only(broker: Broker):
    broker.open.set()
    with transaction.atomic():
        hints.kick("inside")
        assert not broker.entered.is_set()
    wait_for(lambda: broker.sent == ["inside"])


def test_a_kick_of_a_transaction_that_failed_is_not_sent(broker: Broker):
    broker.open.set()
    with pytest.raises(RuntimeError), transaction.atomic():
        hints.kick("undone")
        raise RuntimeError
    hints.kick("done")

    wait_for(lambda: broker.sent == ["done"])


def test_what_is_gathered_is_sent_at_the_end_each_once_and_in_order(broker: Broker):
    broker.open.set()
    with pytest.raises(RuntimeError), hints.gathered(60):
        for name in ("a", "b", "a"):
            hints.kick(name)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            hints.kick("undone")
            raise ZeroDivisionError
        assert not broker.entered.is_set()
        raise RuntimeError
    hints.kick("c")

    wait_for(lambda: broker.sent == ["a", "b", "c"])


def test_a_long_gathering_sends_now_and_then(broker: Broker):
    broker.open.set()
    with hints.gathered(0.0):
        hints.kick("a")
        wait_for(lambda: broker.sent == ["a"])


def test_a_layer_that_hangs_is_given_up(broker: Broker, monkeypatch: pytest.MonkeyPatch, settings: Any):
    settings.HINT_TIMEOUT_S = 0.05

    class Hanging:
        async def group_send(self, group: str, message: dict[str, Any]) -> None:
            import asyncio

            await asyncio.sleep(3600)

    monkeypatch.setattr(hints, "get_channel_layer", Hanging)
    before = hints.dropped()
    broker.open.set()
    hints.look("node-a")
    hints.kick("after")

    wait_for(lambda: broker.sent == ["after"])
    assert hints.dropped() - before == 1


def test_a_kick_reaches_a_queue_of_the_real_broker(settings: Any):
    """The in-memory transport of the embedded profile, by the hints' own connection."""
    with current_app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_declare(queue="ticks")
        channel.queue_purge("ticks")
        hints.kick("no.such.tick")
        message = channel.basic_get("ticks")

    assert message is not None
    assert message.headers["task"] == "no.such.tick"
    assert message.headers["expires"] is not None
