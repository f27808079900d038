"""A task with a volume on a node, its people, and the node's agent."""

import hashlib
from urllib.parse import urlencode

import pytest
from django.test import Client

from agent.contract import messages as m
from agent.contract import wire
from apps.core import leases
from apps.files.models import FileRequest
from tests import factories
from tests.apps.agentlink.conftest import Caller, heartbeat_of

VERSION = "1.2.a"
CONTENT = bytes(range(256)) * 10


class FileAgent(Caller):
    """The node's agent with pieces of files to send."""

    def piece(self, request_id, content, *, offset=0, size=None, incarnation="run-1", **changes):
        asked = {
            "incarnation": incarnation,
            "request_id": request_id,
            "offset": offset,
            "size": len(content) if size is None else size,
            "version": VERSION,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        headers = {
            m.CONTRACT_HEADER: str(m.CONTRACT_VERSION),
            "Authorization": f"Bearer {self.node.public_id}:{self.secret}",
        }
        response = Client(raise_request_exception=False).post(
            f"/agent/v1/files?{urlencode(asked | changes)}",
            content,
            content_type="application/octet-stream",
            headers=headers,
        )
        self.status = response.status_code
        return wire.decode(response.content, m.FileReply | m.AgentError)

    def answer(self, request_id, **fields):
        body = wire.encode(m.FileAnswer(fields.pop("incarnation", "run-1"), request_id, **fields))
        headers = {
            m.CONTRACT_HEADER: str(m.CONTRACT_VERSION),
            "Authorization": f"Bearer {self.node.public_id}:{self.secret}",
        }
        response = Client(raise_request_exception=False).post(
            "/agent/v1/file-answers", body, content_type="application/json", headers=headers
        )
        self.status = response.status_code
        return wire.decode(response.content, m.FileReply | m.AgentError)

    def orders(self):
        return self.post("heartbeat", heartbeat_of(self.node)).file_orders


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path / "store"
    return settings.MEDIA_ROOT


@pytest.fixture
def node(db):
    return factories.make_node()


@pytest.fixture
def agent(node):
    return FileAgent(node)


@pytest.fixture
def task(tenant, member, node):
    group = factories.make_group(tenant, member)
    task = factories.make_task(
        group, state="running", attempt=1, node=node, volumes=["/data/mine:/out"], model_path=""
    )
    factories.make_claim(task, node, incarnation="run-1")
    return task


@pytest.fixture
def ask(api_client, member, task):
    """`ask(path)`: the id of a request that the task's maker asks for."""

    def send(path="/data/mine/züge.csv", kind="download", user=None):
        body = {"task_id": task.public_id, "request_type": kind, "target_path": path}
        answer = api_client(user or member).post("/api/v1/file-requests", body)
        assert answer.status_code == 202, answer.json()
        return answer.json()["id"]

    return send


@pytest.fixture
def row():
    return lambda request_id: FileRequest.objects.get(public_id=request_id)


@pytest.fixture
def lease(db):
    """The lease of the tick that a step runs under."""
    held = leases.acquire("files.tidy", "test", 60)
    assert held is not None
    return held


def send_all(agent, request_id, content=CONTENT, chunk=1000):
    for offset in range(0, max(1, len(content)), chunk):
        reply = agent.piece(request_id, content[offset : offset + chunk], offset=offset, size=len(content))
    return reply


def content(client, request_id, **headers):
    answer = client.get(f"/api/v1/file-requests/{request_id}/content", headers=headers)
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return answer, body


def stored(store_root):
    return [path for path in store_root.rglob("*") if path.is_file()]
