"""What a container and a node can't reach: other engines, and other nodes' tasks (AGENT-16, AGENT-17)."""

import json
from typing import Any

import httpx2
import pytest

from agent.contract import wire
from agent.contract.messages import (
    CONTRACT_HEADER,
    CONTRACT_VERSION,
    ClaimRequest,
    LogRequest,
    ReportRequest,
    TaskReport,
)
from agent.contract.states import Observed, Phase
from tests.fakes.tiny_model import ANSWER
from tests.nodes.fleet import CARDS, IMAGE, Fleet

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

# Prints for each address whether anything there takes a connection.
KNOCK = """
import concurrent.futures, json, socket
def knock(place):
    try:
        socket.create_connection(tuple(place), 2).close()
        return "connected"
    except OSError as error:
        return type(error).__name__
places = json.loads({places!r})
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(json.dumps(list(pool.map(knock, places))))
"""
# Prints the status of each path, asked with this key.
ASK = """
import json, urllib.error, urllib.request
def ask(path):
    headers = {{"Authorization": "Bearer " + {key!r}}} if {key!r} else {{}}
    try:
        return urllib.request.urlopen(
            urllib.request.Request("http://{host}:{port}" + path, headers=headers), timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps({{path: ask(path) for path in ("/health", "/v1/models", "/metrics")}}))
"""


@pytest.mark.req("AGENT-16", "AGENT-17")
def test_a_container_reaches_no_other_engine_on_its_node_or_another(fleet: Fleet) -> None:
    one, two = fleet.machines["one"], fleet.machines["two"]
    intruder = fleet.task(fleet.serve("intruder", kind=CARDS["one"]))
    neighbour = fleet.task(fleet.serve("neighbour", kind=CARDS["one"]))
    distant = fleet.task(fleet.serve("distant", kind=CARDS["two"]))
    assert [task["node"] for task in (intruder, neighbour, distant)] == ["one", "one", "two"]
    inside = intruder["ports"][0]["container_port"]
    gateway = one.address_of(intruder["id"]).rpartition(".")[0]
    closed = [
        [one.address_of(neighbour["id"]), inside],
        [one.engine.address, fleet.port_of(neighbour)],
        [one.engine.address, fleet.port_of(intruder)],
        *([f"{gateway}.{last}", fleet.port_of(neighbour)] for last in (1, 33, 65, 97)),
        [two.address_of(distant["id"]), inside],
        [two.engine.address, fleet.port_of(distant)],
    ]
    places = [["127.0.0.1", inside], [one.address_of(intruder["id"]), inside], *closed]
    found = one.run_inside(intruder["id"], KNOCK.format(places=json.dumps(places)))
    assert found[:2] == ["connected"] * 2  # its own engine: so it would tell
    assert "connected" not in found[2:], list(zip(places, found, strict=True))


@pytest.mark.req("AGENT-17", "AGENT-18")
def test_from_the_machines_own_network_an_engine_asks_for_its_key(fleet: Fleet) -> None:
    one = fleet.machines["one"]
    task = fleet.task(fleet.serve("guarded", kind=CARDS["one"]))
    guarded = {"/health": 200, "/v1/models": 401, "/metrics": 401}
    for key in ("", "sk-of-somebody-else", fleet.key):
        code = ASK.format(host="127.0.0.1", port=fleet.port_of(task), key=key)
        assert one.run_on_host_network(IMAGE, code) == guarded
    # The key that opens it is the container's own, and another engine's is another.
    own = engine_key(fleet, "one", task["id"])
    code = ASK.format(host="127.0.0.1", port=fleet.port_of(task), key=own)
    assert one.run_on_host_network(IMAGE, code) == dict.fromkeys(guarded, 200)
    other = fleet.task(fleet.serve("other", kind=CARDS["one"]))
    assert engine_key(fleet, "one", other["id"]) != own


def engine_key(fleet: Fleet, name: str, task_id: str) -> str:
    code = "import json, os; print(json.dumps(os.environ['LLAMA_API_KEY']))"
    return str(fleet.machines[name].run_inside(task_id, code))


@pytest.mark.req("AGENT-01", "AGENT-02")
def test_a_nodes_credential_is_good_for_nothing_of_another_node(fleet: Fleet) -> None:
    one, two = fleet.machines["one"], fleet.machines["two"]
    group = fleet.serve("theirs", kind=CARDS["two"])
    task = fleet.task(group)
    own, theirs = one.identity(), two.identity()
    incarnation = one.runs()[-1]

    def say(path: str, message: Any, node_id: str = own["node_id"]) -> httpx2.Response:
        headers = {
            CONTRACT_HEADER: str(CONTRACT_VERSION),
            "Content-Type": "application/json",
            "Authorization": f"Bearer {node_id}:{own['secret']}",
        }
        with fleet.http() as http:
            return http.post(f"/agent/v1/{path}", content=wire.encode(message), headers=headers)

    gone = TaskReport(1_000_000, task["id"], task["attempt"], Phase.LEAVING, Observed.GONE)
    refusals = set()
    for path, message in (
        ("claims", ClaimRequest(incarnation, task["id"], task["attempt"])),
        ("logs", LogRequest(incarnation, task["id"], task["attempt"], offset=0, text="forged\n")),
        ("reports", ReportRequest(incarnation, [gone])),
    ):
        for node_id in (own["node_id"], theirs["node_id"]):
            answer = say(path, message, node_id)
            assert (answer.status_code, answer.json()["code"]) == (403, "not_this_nodes"), answer.text
            refusals.add(answer.text)
    assert len(refusals) == 1  # and so is the answer for a task that does not exist
    nobodys = say("claims", ClaimRequest(incarnation, "task-aaaaaaaaaaaaaaaa", 1))
    assert (nobodys.status_code, {nobodys.text}) == (403, refusals)
    assert fleet.task(group) == task
    assert fleet.await_answer("theirs") == ANSWER
