"""Keys with scopes and allowed addresses at the gateway's door: 403 with the rule, one record (TEN-06)."""

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from apps.usage.record import Ending
from tests.fakes.gateway import BODY, SECRET, FakeSource, RunningGateway, make_key, sha
from tests.fakes.mock_engine import MockEngine

pytestmark = [pytest.mark.req("TEN-06", "GW-02"), pytest.mark.usefixtures("each_shell")]


async def ask(gateway: RunningGateway, method: str, path: str, **headers: str) -> tuple[int, str]:
    known = {"Authorization": f"Bearer {SECRET}", **headers}
    body = BODY if method == "POST" else None
    async with aiohttp.request(method, gateway.url + path, json=body, headers=known) as response:
        answer = await response.json()
        assert SECRET not in str(answer) + str(response.headers)
        return response.status, answer.get("error", {}).get("code", "")


def limit(source: FakeSource, **changes: Any) -> None:
    source.table = msgspec.structs.replace(source.table, keys={sha(SECRET): make_key(**changes)})


@pytest.mark.parametrize(
    ("scopes", "calls", "lists"),
    [({"inference", "models"}, 200, 200), ({"inference"}, 200, 403), ({"models"}, 403, 200), ((), 403, 403)],
)
async def test_a_scope_decides_what_a_key_may_do(
    source: FakeSource, engine: MockEngine, tmp_path: Path, scopes: Any, calls: int, lists: int
) -> None:
    limit(source, scopes=frozenset(scopes))
    async with RunningGateway(source, tmp_path) as gateway:
        for method, path, status in (("POST", "/v1/chat/completions", calls), ("GET", "/v1/models", lists)):
            code = "scope_missing" if status == 403 else ""
            assert await ask(gateway, method, path) == (status, code)
        (record,) = gateway.records()
        assert record.ending == (Ending.COMPLETED if calls == 200 else Ending.REFUSED)
    assert len(engine.seen) == (calls == 200)


@pytest.mark.parametrize(
    ("networks", "trusted", "forwarded", "status"),
    [
        (("127.0.0.0/8",), (), "", 200),
        (("10.0.0.0/8",), (), "", 403),
        (("10.0.0.0/8",), (), "10.1.2.3", 403),  # anybody can write the header
        (("10.0.0.0/8",), ("127.0.0.1",), "10.1.2.3", 200),
        (("127.0.0.0/8",), ("127.0.0.1",), "10.1.2.3", 403),
    ],
)
async def test_an_address_decides_where_a_key_works(
    source: FakeSource,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    networks: Any,
    trusted: Any,
    forwarded: str,
    status: int,
) -> None:
    caplog.set_level("DEBUG", "heteroflow")
    limit(source, allowed_networks=networks)
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    async with RunningGateway(source, tmp_path, trusted_proxies=trusted) as gateway:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
            code = "address_not_allowed" if status == 403 else ""
            assert await ask(gateway, method, path, **headers) == (status, code)
        (record,) = gateway.records()
        assert (record.http_status, record.key_id) == (status, make_key().key_id)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    ours = "".join(one.getMessage() for one in caplog.records if one.name.startswith("heteroflow"))
    assert SECRET not in written + ours
