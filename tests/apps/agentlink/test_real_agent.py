"""The agent's own client against the real addresses, over HTTP and a websocket on loopback."""

import asyncio
import socket
import threading

import pytest
import uvicorn
from channels.db import database_sync_to_async
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

from agent.config import Settings
from agent.contract import messages as m
from agent.contract.states import Desired, Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable
from agent.link.client import ServerClient
from agent.link.lookout import keep_lookout
from apps.agentlink.routing import websocket_urlpatterns
from apps.core import hints
from apps.core.clock import utc_now
from apps.core.secrets import sha256_hex
from apps.fleet.models import Node
from apps.workloads.models import Task
from tests import factories
from tests.apps.agentlink.conftest import heartbeat_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("AGENT-01", "AGENT-02", "AGENT-10")]
in_db = database_sync_to_async


@pytest.fixture
def server_url():
    """The agent's addresses on a free port; ended with the test."""
    application = ProtocolTypeRouter(
        {"http": get_asgi_application(), "websocket": URLRouter(websocket_urlpatterns)}
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="warning"))
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture
def settings_of_agent(server_url, tmp_path):
    return Settings(server_url=server_url, state_dir=str(tmp_path))


def place(node_id):
    node = Node.objects.get(public_id=node_id)
    task = factories.make_task(state="scheduling", phase="placed", attempt=1, node=node, gpu_required=0)
    factories.make_claim(task, node)
    hints.look(node_id)
    return node, task


async def test_from_the_token_to_the_log(settings_of_agent):
    token = (await in_db(factories.make_join_token)(now=utc_now()))[1]
    async with ServerClient(settings_of_agent) as client:
        with pytest.raises(ServerRefused) as refused:
            await client.join(m.JoinRequest("jt-wrong", sha256_hex("own"), "machine", "host", "0.1.0"))
        assert (refused.value.status, refused.value.code) == (403, "join_refused")
        joined = await client.join(m.JoinRequest(token, sha256_hex("own"), "machine", "host", "0.1.0"))
        client.set_credential(joined.node_id, "own")

        looks = asyncio.Queue()
        lookout = asyncio.create_task(keep_lookout(client, lambda: looks.put_nowait("look")))
        await asyncio.wait_for(looks.get(), 10)  # connected
        node, task = await in_db(place)(joined.node_id)
        await asyncio.wait_for(looks.get(), 10)  # the hint

        node.runtime, node.cpu_count, node.memory_total_mb, node.engines = "process", 2, 4096, []
        beat = await in_db(heartbeat_of)(node)
        desired = await client.heartbeat(beat)
        assert [(t.task_id, t.desired) for t in desired.tasks] == [(task.public_id, Desired.RUN)]
        granted = await client.claim(m.ClaimRequest(beat.incarnation, task.public_id, 1))
        assert isinstance(granted, m.ClaimGranted)
        ready = m.TaskReport(1, task.public_id, 1, Phase.READY, Observed.READY)
        assert await client.report(m.ReportRequest(beat.incarnation, [ready])) == m.ReportReply(1)
        assert (await in_db(Task.objects.get)(pk=task.pk)).state == "running"
        piece = m.LogRequest(beat.incarnation, task.public_id, 1, 0, "h\u00e9llo\n")
        assert await client.log(piece) == m.LogReply(7)

        client.set_credential(joined.node_id, "stolen")
        with pytest.raises(ServerRefused) as refused:
            await client.log(piece)
        assert refused.value.status == 401
        lookout.cancel()
        await asyncio.gather(lookout, return_exceptions=True)


async def test_a_body_above_the_limit_is_refused_and_not_taken_for_an_absent_server(
    settings_of_agent, settings
):
    settings.AGENT_BODY_MAX_BYTES = 1000
    node = await in_db(factories.make_node)()
    async with ServerClient(settings_of_agent) as client:
        client.set_credential(node.public_id, "node-secret")
        with pytest.raises((ServerRefused, ServerUnreachable)) as refused:
            await client.log(m.LogRequest("run-1", "task-x", 1, 0, "x" * 100_000))
        assert isinstance(refused.value, ServerRefused)
        assert refused.value.status == 413
