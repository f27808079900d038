"""Three machines join by the printed line and serve, each what it has cards for (AGENT-01, AGENT-16)."""

import pytest

from tests.fakes.tiny_model import ANSWER
from tests.nodes.fleet import CARDS, Fleet
from tests.nodes.servers import any_server
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


@pytest.mark.req("AGENT-01", "AGENT-16")
def test_nodes_that_joined_by_the_printed_line_are_online_with_open_doors(fleet: Fleet) -> None:
    for name, machine in fleet.machines.items():
        assert fleet.proxy.fingerprint in machine.command and "https://" in machine.command
        # A dial of before may have been lost with whatever the test before did to the network.
        until(lambda name=name: fleet.is_up(name), lambda name=name: fleet.told(name), 60)
        node = fleet.node(name)
        assert node["runtime"] == "docker"
        assert [card["model"] for card in node["cards"]] == [CARDS[name]] * 2
    assert len({machine.node_id for machine in fleet.machines.values()}) == 3


@any_server
@pytest.mark.req("AGENT-01")
def test_an_agent_with_another_fingerprint_says_nothing_to_the_server(fleet: Fleet) -> None:
    machine = fleet.machines["one"]
    right = machine.command
    machine.kill()
    said, runs = machine.log().count("certificate is not the one expected"), len(machine.runs())
    machine.command = right.replace(fleet.proxy.fingerprint, "ab" * 32)
    assert machine.command != right
    try:
        machine.start()
        until(lambda: machine.log().count("certificate is not the one expected") > said, machine.log, 30)
    finally:
        machine.kill()
        machine.command = right
        machine.start()
    until(lambda: len(machine.runs()) > runs, machine.log, 30)


@pytest.mark.req("SCHED-03", "AGENT-06")
def test_services_land_where_their_cards_are_and_answer_the_sdk(fleet: Fleet) -> None:
    groups = {name: fleet.serve(f"on-{name}", kind=kind) for name, kind in CARDS.items()}
    for name, group in groups.items():
        task = fleet.task(group)
        assert task["node"] == name
        assert len(fleet.machines[name].containers(task["id"])) == 1
        assert fleet.await_answer(f"on-{name}") == ANSWER
    with fleet.openai() as sdk:
        stream = sdk.chat.completions.create(
            model="on-two", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=16
        )
        words = [part.choices[0].delta.content or "" for part in stream if part.choices]
    assert "".join(words) == ANSWER
    assert len([word for word in words if word]) > 3  # word by word, not kept back by anybody on the way


@any_server
@pytest.mark.req("SCHED-03")
def test_replicas_of_one_service_spread_over_the_nodes(fleet: Fleet) -> None:
    group = fleet.serve("spread", replicas=3)
    assert {task["node"] for task in fleet.tasks(group)} == set(CARDS)
    assert fleet.await_answer("spread") == ANSWER


@any_server
def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new(fleet: Fleet) -> None:
    with fleet.only("two"):
        before = fleet.serve("before")
    assert fleet.task(before)["node"] == "two"
    fleet.set_node("two", cordoned=True)
    after = fleet.serve("after", replicas=3)
    assert {task["node"] for task in fleet.tasks(after)} == {"one", "three"}
    assert fleet.task(before)["status"] == "running"
    assert fleet.await_answer("before") == ANSWER
