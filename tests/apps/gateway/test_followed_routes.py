"""What is done to a route acts in every gateway process by the version alone: no message is needed, so none
can be lost (GW-16)."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from pytest_django import Settings

from agent.contract.states import Phase, State
from apps.fleet.models import Port
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.wiring import build_gateway
from apps.routing import services
from apps.routing.models import ModelRoute
from apps.routing.table import Route
from apps.tenants.scope import SYSTEM
from tests import factories

pytestmark = pytest.mark.req("GW-16")


def test_a_change_is_seen_within_two_seconds() -> None:
    assert GatewayConfig().version_poll_s <= 1


@pytest.mark.req("GW-03")
@pytest.mark.django_db(transaction=True)
async def test_a_changed_route_acts_in_every_process(settings: Settings, tmp_path: Path) -> None:
    settings.HETEROFLOW_USAGE_DIR = tmp_path
    settings.HETEROFLOW_GATEWAY_VERSION_POLL_S = 0.05

    def make_rows() -> tuple[str, ModelRoute]:
        tenant, node = factories.make_tenant(), factories.make_node()
        group = factories.make_group(tenant, factories.make_member(tenant))
        for rank, port in enumerate((20001, 20002)):
            task = factories.make_task(
                group, node=node, state=State.RUNNING, phase=Phase.READY, attempt=1, rank=rank
            )
            if port == 20001:  # the other has none, so it gets no call
                Port.objects.create(
                    node=node, number=port, owner=task.public_id, attempt=1, container_port=8000
                )
        return tenant.public_id, services.create_route(group=group, model_name="m")

    tenant_id, route = await sync_to_async(make_rows)()
    async with AsyncExitStack() as stack:
        apps = [build_gateway() for _ in range(2)]
        for app in apps:
            await app.startup()
            stack.push_async_callback(app.shutdown)

        async def everywhere(wanted: Callable[[tuple[Route, ...]], Any]) -> None:
            async with asyncio.timeout(20):
                for app in apps:
                    while not wanted(routes_of(app)):
                        await asyncio.sleep(0.02)

        def routes_of(app: Any) -> tuple[Route, ...]:
            found: tuple[Route, ...] = app._tables.current.routes[tenant_id]["m"]
            return found

        async def change(**body: Any) -> None:
            await sync_to_async(services.update_route)(actor=SYSTEM, route=route, body=body)

        await everywhere(lambda routes: [len(one.replicas) for one in routes] == [1])
        await change(weight=7, priority=-3, version="v2", balancing="engine_aware", sticky="user")
        told = (7, -3, "v2", "engine_aware", "user")
        await everywhere(
            lambda routes: (
                [(r.weight, r.priority, r.version, r.balancing, r.sticky) for r in routes] == [told]
            )
        )
        await change(active=False)
        await everywhere(lambda routes: routes == ())
        await change(active=True)
        await everywhere(lambda routes: len(routes) == 1)
    await sync_to_async(connections.close_all)()
