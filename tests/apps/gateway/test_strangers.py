"""Another tenant's key at every inference address (TEN-04): models, replicas and versions are not there."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from apps.gateway.plane.core.request import INFERENCE_PATHS
from apps.routing.table import DEFAULT_SCOPES, PIN, Table
from tests.fakes.gateway import (
    MODEL,
    SECRET,
    TENANT,
    FakeSource,
    RunningGateway,
    make_key,
    make_replica,
    make_route,
    sha,
)
from tests.fakes.mock_engine import MockEngine

pytestmark = [pytest.mark.req("TEN-04", "GW-02", "GW-03"), pytest.mark.usefixtures("each_shell")]
THEIRS = "ten-zzzzzzzzzzzzzzzz"
INPUTS = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}


def make_two(mine: MockEngine, theirs: MockEngine) -> Table:
    """Two tenants: each has a model of its own name, and both have one of the same name."""
    own = make_route(make_replica(mine, "task-mine"), route_id="mr-mine", group_id="tg-mine")
    other = make_route(
        make_replica(theirs, "task-zebra"), route_id="mr-zebra", group_id="tg-zebra", version="v-zebra"
    )
    tester = make_key(scopes=DEFAULT_SCOPES | {PIN})
    return Table(
        version=1,
        keys={sha(SECRET): tester, sha("sk-zebra"): make_key(tenant_id=THEIRS, key_id="key-zebra")},
        routes={TENANT: {MODEL: (own,)}, THEIRS: {MODEL: (other,), "zebra-model": (other,)}},
    )


class Stranger:
    def __init__(self, http: aiohttp.ClientSession, gateway: RunningGateway) -> None:
        self.http, self.gateway = http, gateway

    async def ask(
        self, path: str, model: str | None = None, secret: str = SECRET, **headers: str
    ) -> tuple[int, Any]:
        method = "GET" if model is None else "POST"
        body = None if model is None else {"model": model, **INPUTS}
        sent = {"Authorization": f"Bearer {secret}", **headers}
        async with self.http.request(method, self.gateway.url + path, json=body, headers=sent) as answer:
            text = await answer.text()
            assert "zebra" not in text.replace(model or path.rpartition("/")[2], "") + str(answer.headers), (
                text
            )
            return answer.status, json.loads(text)


async def test_anothers_models_replicas_and_versions_are_not_there(tmp_path: Path) -> None:
    async with (
        MockEngine() as mine,
        MockEngine() as theirs,
        aiohttp.ClientSession() as http,
        RunningGateway(FakeSource(make_two(mine, theirs)), tmp_path) as gateway,
    ):
        stranger = Stranger(http, gateway)
        listed = await stranger.ask("/v1/models")
        assert [one["id"] for one in listed[1]["data"]] == [MODEL]
        status, body = await stranger.ask("/v1/models/zebra-model")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        for path in sorted(INFERENCE_PATHS):
            for model, headers in (
                ("{}-model", {}),
                (MODEL, {"X-HeteroFlow-Backend": "task-{}"}),
                (MODEL, {"X-HeteroFlow-Version": "v-{}"}),
            ):
                answers = []
                for name in ("zebra", "lions"):
                    sent = {header: value.format(name) for header, value in headers.items()}
                    status, body = await stranger.ask(path, model.format(name), **sent)
                    answers.append((status, json.dumps(body).replace(name, "?")))
                assert answers[0] == answers[1] and answers[0][0] == 404, (path, answers)
        session = {"X-HeteroFlow-Session": "task-zebra"}
        assert (await stranger.ask("/v1/chat/completions", MODEL, **session))[0] == 200
        records = gateway.records()
        assert {record.tenant_id for record in records} == {TENANT}
        assert {record.task_id for record in records} == {"", "task-mine"}
        assert theirs.seen == [] and len(mine.seen) == 1


async def test_a_name_that_two_tenants_have_leads_each_to_its_own(tmp_path: Path) -> None:
    async with MockEngine() as mine, MockEngine() as theirs, aiohttp.ClientSession() as http:
        table = make_two(mine, theirs)
        async with RunningGateway(FakeSource(table), tmp_path) as gateway:
            stranger = Stranger(http, gateway)
            assert (await stranger.ask("/v1/chat/completions", MODEL, secret="sk-zebra"))[0] == 200
            assert (len(mine.seen), len(theirs.seen)) == (0, 1)
            # Once one's own is gone the other's does not stand in for it.
            gateway.app._tables.current = msgspec.structs.replace(table, routes=table.routes | {TENANT: {}})
            status, body = await stranger.ask("/v1/chat/completions", MODEL)
            assert (status, body["error"]["code"]) == (404, "model_not_found")
            assert len(theirs.seen) == 1
