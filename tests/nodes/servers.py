"""The two servers that a fleet joins: the embedded one behind a front proxy, and the production profile.

Both are reached by machines and callers at the same kind of address: https, by a certificate of their
own that the join line pins.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apps.ops.production import front
from apps.ops.rest import Api
from tests.fakes.nginx import FrontProxy, front_proxy
from tests.fakes.switch import Switch, switch
from tests.fakes.tiny_model import make_tiny_model
from tests.production_stack import ProductionStack
from tests.stack import SHORT_PERIODS, Stack, clean_environment, free_port, new_stack

SILENT_S = 10.0
SETTINGS = {
    "NODE_SILENT_S": str(SILENT_S),
    "DOOR_CHECK_PERIOD_S": "1",
    "DRAIN_PERIOD_S": "0.5",
    "DRAIN_DEADLINE_S": "4",
    "LOAN_MAX_S": "20",
}


class BareStack(Stack):
    """The embedded server without its demo; `switch` stands in the way of its nodes' heartbeats."""

    switch: Switch

    def _is_settled(self) -> bool:
        assert self.process is not None
        text = self.printed()
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{text[-3000:]}"
        return "(shown this once)" in text and Api(self.base_url, timeout_s=2).answers("/readyz")


@contextmanager
def embedded(folder: Path, host: str) -> Iterator[tuple[Stack, FrontProxy]]:
    """One process, SQLite; nginx at `host` in front of it, with a switch for heartbeats between them."""
    inner = free_port()
    with (
        switch(inner) as between,
        front_proxy(
            folder, host=host, port=free_port(), server_port=inner, heartbeats_port=between.port
        ) as proxy,
    ):
        made = new_stack(
            folder / "server",
            **SETTINGS,
            PORT=str(inner),
            PUBLIC_URL=proxy.url,
            SERVER_CERTIFICATE_SHA256=proxy.fingerprint,
            ALLOWED_HOSTS=f"127.0.0.1,{host}",
            TRUSTED_PROXIES="127.0.0.1",
        )
        stack = BareStack(made.data_dir, inner, made.model_file, made.environment)
        stack.switch = between
        try:
            stack.start([sys.executable, "manage.py", "up", "--no-demo"])
            yield stack, proxy
        finally:
            stack.end()


@contextmanager
def production(folder: Path, host: str) -> Iterator[tuple[Stack, FrontProxy]]:
    """PostgreSQL, Redis, two of each process; its own nginx at all addresses. Inside, this process
    believes its certificate."""
    place = Path(tempfile.mkdtemp(prefix="heteroflow-fleet-"))
    place.chmod(0o711)  # PostgreSQL's account passes through
    port = free_port()
    url = f"https://{host}:{port}"
    environment = clean_environment(
        **SHORT_PERIODS,
        **SETTINGS,
        HOST="0.0.0.0",
        PORT=str(port),
        DATA_DIR=str(place / "data"),
        PUBLIC_URL=url,
        ALLOWED_HOSTS=f"127.0.0.1,{host}",
    )
    stack = ProductionStack(place / "data", port, make_tiny_model(place / "made"), environment)
    before = os.environ.get("SSL_CERT_FILE")
    try:
        stack.start()
        os.environ["SSL_CERT_FILE"] = str(stack.certificate)
        yield stack, FrontProxy(url, stack.certificate, front.fingerprint(stack.certificate))
    finally:
        if before is None:
            os.environ.pop("SSL_CERT_FILE", None)
        else:
            os.environ["SSL_CERT_FILE"] = before
        stack.end()
        shutil.rmtree(place, ignore_errors=True)


SERVERS = {"embedded": embedded, "production": production}
# For tests of what is the machines' own doing, whatever the server.
any_server = pytest.mark.parametrize("whole_fleet", ["embedded"], indirect=True)
