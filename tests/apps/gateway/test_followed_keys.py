"""What is done to a key acts in every gateway process by the version alone: no message is needed, so none can
be lost (TEN-06)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from pytest_django import Settings

from apps.core.clock import utc_now
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.wiring import build_gateway
from apps.routing.models import ModelRoute
from apps.tenants import services
from apps.tenants.models import ApiKey, Tenant
from apps.tenants.scope import SYSTEM
from tests import factories
from tests.apps.gateway.test_database import served
from tests.fakes.gateway import MODEL

pytestmark = pytest.mark.req("TEN-06", "GW-02", "TEN-01")


def test_all_that_may_pass_until_a_change_acts_is_two_seconds() -> None:
    """A table that is a poll old, or an answer of the database that is kept for as long as it may be."""
    config = GatewayConfig()
    assert config.version_poll_s + config.key_negative_ttl_s <= 2


@pytest.mark.django_db(transaction=True)
async def test_a_changed_key_acts_in_every_process(settings: Settings, tmp_path: Path) -> None:
    settings.HETEROFLOW_USAGE_DIR = tmp_path
    settings.HETEROFLOW_GATEWAY_VERSION_POLL_S = 0.05
    settings.HETEROFLOW_GATEWAY_KEY_NEGATIVE_TTL_S = 0.05
    now = utc_now()

    def make_rows() -> tuple[Tenant, ApiKey, str]:
        tenant = factories.make_tenant()
        key, plain = factories.make_key(tenant)
        group = factories.make_group(tenant, key.member)
        ModelRoute.objects.create(tenant=tenant, model_name=MODEL, group=group)
        return tenant, key, plain

    tenant, key, first = await sync_to_async(make_rows)()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(served(build_gateway())) for _ in range(2)]
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def status(url: str, plain: str) -> int:
            headers = {"Authorization": f"Bearer {plain}"}
            async with http.get(url + "/v1/models", headers=headers) as answer:
                return answer.status

        async def everywhere(plain: str, wanted: int) -> None:
            async with asyncio.timeout(20):
                for url in urls:
                    while await status(url, plain) != wanted:
                        await asyncio.sleep(0.02)

        async def do(act: Any, **given: Any) -> Any:
            return await sync_to_async(act)(actor=SYSTEM, **given)

        async def change(**changes: Any) -> None:
            await do(services.change_key, key=key, changes=changes, now=now)

        await everywhere(first, 200)
        await change(scopes=["inference"])
        await everywhere(first, 403)
        await change(scopes=["models"], allowed_addresses=["192.0.2.0/24"])
        await everywhere(first, 403)
        await change(allowed_addresses=["127.0.0.0/8"])
        await everywhere(first, 200)
        overlap = {"now": now, "overlap_s": 3600}
        _, second = await do(services.rotate_key, key=key, **overlap)
        assert [await status(url, second) for url in urls] == [200, 200]  # newer than any table: at once
        await everywhere(first, 200)
        _, third = await do(services.rotate_key, key=key, now=now)
        await everywhere(first, 401)
        await everywhere(second, 401)
        await everywhere(third, 200)
        await do(services.suspend_tenant, tenant=tenant, reason="unpaid")
        await everywhere(third, 403)
        await do(services.resume_tenant, tenant=tenant)
        await everywhere(third, 200)
        await do(services.revoke_key, key=key, now=now)
        await everywhere(third, 401)
    await sync_to_async(connections.close_all)()
