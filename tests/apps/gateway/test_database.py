"""The gateway as it is built from settings and rows: keys, routes, usage rows, last use."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from pytest_django import Settings

from apps.core import versions
from apps.core.free_ports import free_ports
from apps.gateway.plane.io.app import GatewayApp
from apps.gateway.plane.io.config import load_config
from apps.gateway.wiring import build_gateway
from apps.routing.models import ModelRoute
from apps.tenants.models import ApiKey
from apps.usage.models import UsageRecord
from heteroflow.door import Application
from tests import factories
from tests.fakes.gateway import BODY, MODEL, ServerInside, until


@contextlib.asynccontextmanager
async def served(app: GatewayApp) -> AsyncIterator[str]:
    await app.startup()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = ServerInside(uvicorn.Config(app, lifespan="off", log_level="error", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await app.shutdown()
        server.should_exit = server.force_exit = True
        await serving


@pytest.mark.req("GW-02", "GW-12", "TEN-06")
@pytest.mark.django_db(transaction=True)
async def test_rows_become_answers_and_answers_rows(settings: Settings, tmp_path: Path) -> None:
    settings.HETEROFLOW_USAGE_DIR = tmp_path
    settings.HETEROFLOW_GATEWAY_VERSION_POLL_S = 0.05
    settings.HETEROFLOW_GATEWAY_USAGE_RETRY_S = 0.05
    settings.HETEROFLOW_GATEWAY_USAGE_FLUSH_S = 0.05
    settings.HETEROFLOW_GATEWAY_TOUCH_INTERVAL_S = 0.05

    def make_rows() -> tuple[ApiKey, str]:
        tenant = factories.make_tenant()
        key, plain = factories.make_key(tenant)
        group = factories.make_group(tenant, key.member)
        ModelRoute.objects.create(tenant=tenant, model_name=MODEL, group=group)
        versions.bump()
        return key, plain

    key, plain = await sync_to_async(make_rows)()
    async with served(build_gateway()) as url:
        headers = {"Authorization": f"Bearer {plain}"}
        async with aiohttp.request("GET", url + "/v1/models", headers=headers) as response:
            assert [entry["id"] for entry in (await response.json())["data"]] == [MODEL]
        path = url + "/v1/chat/completions"
        async with aiohttp.request("POST", path, json=BODY, headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "no_backend")
        exists = sync_to_async(lambda: UsageRecord.objects.filter(key_id=key.public_id, model=MODEL).exists())
        used = sync_to_async(lambda: ApiKey.objects.get(pk=key.pk).last_used_at)
        async with asyncio.timeout(10):
            while not await exists() or await used() is None:
                await asyncio.sleep(0.02)

        def revoke() -> None:
            ApiKey.objects.filter(pk=key.pk).update(revoked_at=factories.NOW)
            versions.bump()

        await sync_to_async(revoke)()

        async def status() -> int:
            async with aiohttp.request("POST", path, json=BODY, headers=headers) as response:
                return response.status

        async with asyncio.timeout(10):
            while await status() != 401:
                await asyncio.sleep(0.02)
    assert list(tmp_path.glob("*.rejected")) == []
    await sync_to_async(connections.close_all)()


@pytest.mark.req("GW-02", "OPS-03")
@pytest.mark.django_db(transaction=True)
async def test_a_server_process_takes_calls_by_the_listener_too(settings: Settings, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings.HETEROFLOW_USAGE_DIR = tmp_path
    settings.GATEWAY_LISTEN = f"127.0.0.1:{port}"
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    living = asyncio.create_task(Application(ASGIHandler())({"type": "lifespan"}, asked.get, told.put))
    await asked.put({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.request("GET", url + "/v1/models") as response:
        assert response.status == 401
    async with aiohttp.request("GET", url + "/admin/") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "unknown_url")
    await asked.put({"type": "lifespan.shutdown"})
    assert (await told.get())["type"] == "lifespan.shutdown.complete"
    await living
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    await sync_to_async(connections.close_all)()


def test_settings_reach_the_config(settings: Settings) -> None:
    settings.HETEROFLOW_GATEWAY_GAP_TIMEOUT_S = "7.5"
    settings.HETEROFLOW_GATEWAY_MAX_BODY_BYTES = 1000
    config = load_config()
    assert (config.gap_timeout_s, config.max_body_bytes) == (7.5, 1000)
    assert config.usage_dir == str(settings.HETEROFLOW_USAGE_DIR)


def test_a_setting_that_cant_be_used_is_named(settings: Settings) -> None:
    settings.HETEROFLOW_GATEWAY_GAP_TIMEOUT_S = "soon"
    with pytest.raises(ImproperlyConfigured, match="gap_timeout_s"):
        load_config()
