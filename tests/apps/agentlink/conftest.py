"""An agent for tests: speaks the contract to the views with a node's credential."""

import msgspec
import pytest
from django.core.cache import cache
from django.test import Client

from agent.contract import messages as m
from agent.contract import wire
from agent.contract.states import RuntimeKind
from apps.agentlink import guessing
from apps.fleet.models import Node
from tests import factories

SECRET = "node-secret"
ANSWER = (
    m.JoinReply
    | m.HeartbeatReply
    | m.HeartbeatUnchanged
    | m.ClaimGranted
    | m.ClaimRefused
    | m.ReportReply
    | m.LogReply
    | m.AgentError
)


class Caller:
    """Posts messages; `status` is that of the last answer."""

    def __init__(self, node: Node | None, secret: str = SECRET) -> None:
        self.node = node
        self.secret = secret
        self.client = Client(raise_request_exception=False)
        self.status = 0
        self.headers: dict[str, str] = {}

    def post(self, path, message, **headers):
        body = message if isinstance(message, bytes) else wire.encode(message)
        sent = {m.CONTRACT_HEADER: str(m.CONTRACT_VERSION)}
        if self.node is not None:
            sent["Authorization"] = f"Bearer {self.node.public_id}:{self.secret}"
        sent |= headers
        sent = {name: value for name, value in sent.items() if value is not None}
        response = self.client.post(
            f"/agent/v1/{path}", body, content_type=sent.pop("Content-Type", "application/json"), headers=sent
        )
        self.status, self.headers = response.status_code, response.headers
        assert response["Content-Type"] == "application/json"
        return wire.decode(response.content, ANSWER)


def heartbeat_of(node, **changes):
    """A heartbeat as the node's present run sends it; cards are those of its rows."""
    fields = {
        "incarnation": "run-1",
        "started_at": 1.0,
        "sequence": 1,
        "desired_hash": "",
        "sent_at": 0.0,
        "machine_id": node.machine_id,
        "runtime": RuntimeKind(node.runtime),
        "host": m.HostReport(
            cpu_count=node.cpu_count,
            memory_total_mb=node.memory_total_mb,
            memory_available_mb=node.memory_total_mb and node.memory_total_mb * 9 // 10,
            cpu_percent=10.0,
            disk_used_percent=10.0,
        ),
        "dial": m.DialTarget(host="127.0.0.1"),
        "cards": [
            m.CardReport(
                uuid=card.uuid,
                index=card.index,
                vendor=card.vendor,
                model=card.model,
                vram_total_mb=card.vram_total_mb,
                vram_used_mb=0,
                temperature_c=40,
                utilization_percent=0,
            )
            for card in node.cards.all()
        ],
        "engines": msgspec.convert(node.engines, list[m.EngineReport]),
        "host_ipc": node.host_ipc,
    }
    return m.HeartbeatRequest(**(fields | changes))


@pytest.fixture(autouse=True)
def no_failures_counted_before(monkeypatch):
    monkeypatch.setattr(guessing, "_away_until", 0.0)
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def node(db):
    return factories.make_node(cards=2, engines=[])


@pytest.fixture
def agent(node):
    return Caller(node)


@pytest.fixture
def placed(node):
    """A task whose first attempt is placed on `node`, nobody has taken it on yet."""
    task = factories.make_task(state="scheduling", phase="placed", attempt=1, node=node)
    factories.make_claim(task, node)
    return task
