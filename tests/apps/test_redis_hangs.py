"""No request waits for a Redis that takes connections and never answers (OPS-06): every address that changes
something, every page and list, and the agents' ones, with the cache, broker and channel layer that the
production settings make.

Counts waits by their timeouts and not by a clock, so that a busy machine moves nothing.
"""

import contextlib
import queue
import runpy
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import current_app
from django.core.cache import cache
from django.test import Client

from agent.contract import messages as m
from agent.contract import wire
from apps.agentlink import guessing
from apps.core import hints, metric_slots, scopes
from tests.apps import test_audited as changing
from tests.apps.agentlink.conftest import Caller, heartbeat_of
from tests.apps.ops.test_production_settings import FERNET, RANDOM
from tests.apps.strangers.estate import Estate
from tests.apps.strangers.table import Address, our_addresses

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.req("OPS-06"),
    pytest.mark.filterwarnings("ignore:Exception in thread hints"),  # how `end_sender` ends it
]

READ = [a for a in our_addresses() if a.scope not in (scopes.NODE, scopes.METRICS)]
Committing = Callable[..., Any]
GUESS = m.JoinRequest(
    token="jt-guess", secret_sha256="0" * 64, machine_id="m", hostname="h", agent_version="0.1.0"
)


class Waits(list[float | None]):
    """The timeouts, in seconds, that the test's own thread spent on one port in vain; other threads
    may wait as they like."""

    def __init__(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.port, self.thread = port, threading.get_ident()
        for name in ("connect", "recv", "recv_into", "send", "sendall"):
            monkeypatch.setattr(socket.socket, name, self._watched(getattr(socket.socket, name)))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(link: socket.socket, *args: Any) -> Any:
            try:
                return real(link, *args)
            except TimeoutError:
                if threading.get_ident() == self.thread and link.getpeername()[1] == self.port:
                    self.append(link.gettimeout())
                raise

        return call


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, settings: Any) -> Iterator[Any]:
    """What the production settings say of Redis is in force, and Redis is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        environment = {
            "DATA_DIR": str(tmp_path),
            "SECRET_KEY": RANDOM,
            "ENCRYPTION_KEYS": FERNET,
            "ALLOWED_HOSTS": "flow.example.com",
            "PUBLIC_URL": "https://flow.example.com",
            "DATABASE_URL": "postgres://user:word@127.0.0.1:1/name",
            "REDIS_URL": f"redis://:word@127.0.0.1:{port}/0",
            "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        }
        with monkeypatch.context() as told:
            for name, value in environment.items():
                told.setenv(name, value)
            # Else this process's own metrics, and those of every later test, would move into that folder.
            told.setattr(metric_slots, "share", lambda folder: None)
            said = runpy.run_module("heteroflow.settings.production")
        settings.CACHES, settings.CHANNEL_LAYERS = said["CACHES"], said["CHANNEL_LAYERS"]
        settings.HINTS_INLINE = said["HINTS_INLINE"]
        monkeypatch.setattr(current_app.conf, "broker_write_url", said["CELERY_BROKER_URL"])
        monkeypatch.setattr(hints, "_queue", queue.Queue(hints.QUEUE_LENGTH))
        monkeypatch.setattr(hints, "_sender", None)
        monkeypatch.setattr(guessing, "_away_until", 0.0)
        settings.REDIS_TIMEOUT_S, settings.HINT_TIMEOUT_S = said["REDIS_TIMEOUT_S"], 0.05
        yield settings
        end_sender()


def end_sender() -> None:
    """The thread of this test's hints ends before the next test's broker is in force."""
    with contextlib.suppress(queue.Empty):
        while True:
            hints._queue.get_nowait()
    hints._queue.put([(sys.exit,)])
    if hints._sender is not None:
        hints._sender.join(20)
        assert not hints._sender.is_alive()


@pytest.fixture
def waits(production: Any, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(int(production.CACHES["default"]["LOCATION"].rpartition(":")[2].split("/")[0]), monkeypatch)


def test_a_wait_would_be_seen(waits: Waits, production: Any) -> None:
    with pytest.raises(Exception, match=r"[Tt]imeout"):
        cache.get("anything")
    assert waits == [production.REDIS_TIMEOUT_S]


@pytest.mark.parametrize(("method", "template"), sorted(changing.SENT), ids=str)
def test_no_change_waits(
    waits: Waits,
    operator: Any,
    django_capture_on_commit_callbacks: Committing,
    method: str,
    template: str,
) -> None:
    estate = Estate()
    address = next(a for a in our_addresses() if str(a) == template)
    sent: Any = changing.SENT[method, template]
    body = sent(estate) if callable(sent) else sent
    with django_capture_on_commit_callbacks(execute=True):
        assert changing._ask(estate, operator, method, address, template, body).status_code < 500
    assert waits == []


@pytest.mark.parametrize("address", READ, ids=str)
def test_no_read_waits(waits: Waits, address: Address) -> None:
    estate = Estate()
    reader = Client()
    reader.force_login(estate.owner)
    path = address.fill([estate.id_of(kind) for kind in address.kinds])
    assert reader.get(path).status_code in {*range(500), 503}
    assert waits == []


def test_no_heartbeat_waits(waits: Waits, django_capture_on_commit_callbacks: Committing) -> None:
    node = Estate().rows["node"]
    caller = Caller(node, secret="a-secret")
    with django_capture_on_commit_callbacks(execute=True) as gave:
        answer = caller.post("heartbeat", heartbeat_of(node))
    assert caller.status == 200, wire.encode(answer)
    assert gave, "it gave a hint"
    assert waits == []


def test_one_join_of_a_process_waits_once(waits: Waits, production: Any) -> None:
    for _ in range(3):
        caller = Caller(None)
        caller.post("join", GUESS)
        assert caller.status == 403
    assert waits == [production.REDIS_TIMEOUT_S] and production.REDIS_TIMEOUT_S <= 0.3


def test_after_a_while_the_cache_is_asked_again(waits: Waits, production: Any) -> None:
    production.CACHE_RETRY_S = 0
    Caller(None).post("join", GUESS)
    assert len(waits) == 2, "before the token is looked at, and to count it"
