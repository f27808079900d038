"""Engines that nobody here runs, as backends (GW-19): their own key and name, TLS, public addresses only."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from apps.gateway.plane.io import pool
from apps.routing.table import Replica
from tests.fakes.gateway import BODY, FakeSource, RunningGateway, make_replica, make_route, make_table
from tests.fakes.mock_engine import MockEngine

pytestmark = pytest.mark.req("GW-19")
QUIET = {"probe_period_s": 0.0, "engine_load_poll_s": 0.0}


def far(engine: MockEngine, **changes: Any) -> Replica:
    external = make_replica(engine, "ext-a", attempt=0, external=True, private_ok=True)
    values = {"engine": "external", "served_model_name": "", "engine_key": "their-key", **changes}
    return msgspec.structs.replace(external, **values)


def serve(replica: Replica, folder: Path) -> RunningGateway:
    return RunningGateway(FakeSource(make_table(make_route(replica, group_id=""))), folder, **QUIET)


async def ask(http: aiohttp.ClientSession, gateway: RunningGateway) -> tuple[int, Any]:
    async with http.post(f"{gateway.url}/v1/chat/completions", json=BODY) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.req("GW-12", "GW-05")
async def test_it_is_a_backend_like_any(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with (
        MockEngine("their-name", key="their-key") as engine,
        serve(far(engine), tmp_path) as gateway,
    ):
        status, answer = await ask(http, gateway)
        assert (status, answer["model"]) == (200, "caller-name")
        assert engine.seen[0]["model"] == "their-name"
        assert engine.seen_headers[0]["Authorization"] == "Bearer their-key"
        (record,) = gateway.records()
        assert (record.task_id, record.group_id, record.prompt_tokens) == ("ext-a", "", 21)
        await gateway.app._probes.probe_all()
        assert gateway.app._parts.choosing.words() == {}
        assert engine.model_lists == 2


async def test_a_key_that_it_does_not_take_is_told_so(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Its model list, asked for its model's name, refuses the key before any call does."""
    async with (
        MockEngine("their-name", key="another-key") as engine,
        serve(far(engine), tmp_path) as gateway,
    ):
        status, answer = await ask(http, gateway)
        assert (status, answer["error"]["code"]) == (502, "upstream_credential")
        assert engine.seen == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_address_of_the_inner_network_is_not_connected_to(
    http: aiohttp.ClientSession, tmp_path: Path, host: str
) -> None:
    async with (
        MockEngine() as engine,
        serve(far(engine, host=host, private_ok=False), tmp_path) as gateway,
    ):
        status, answer = await ask(http, gateway)
        assert (status, answer["error"]["code"]) == (502, "upstream_unreachable")
        assert (engine.seen, engine.model_lists) == ([], 0)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of `localhost` that nobody knows, and the context of a server that shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


@pytest.mark.parametrize(
    ("host", "trusted", "expected"),
    [
        ("localhost", True, 200),
        ("localhost", False, 502),
        ("127.0.0.1", True, 502),  # the certificate is another host's
    ],
)
async def test_its_certificate_is_looked_at(
    http: aiohttp.ClientSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: tuple[Path, ssl.SSLContext],
    host: str,
    trusted: bool,
    expected: int,
) -> None:
    path, context = certificate
    if trusted:
        monkeypatch.setattr(pool, "_public_context", lambda: ssl.create_default_context(cafile=path))
    async with (
        MockEngine(context=context) as engine,
        serve(far(engine, host=host, tls=True), tmp_path / "usage") as gateway,
    ):
        assert (await ask(http, gateway))[0] == expected
        assert len(engine.seen) == (expected == 200)
