"""Every message keeps the shape that it has on the wire (docs/contract.md)."""

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import messages, wire
from agent.contract.messages import DesiredTask, HeartbeatAnswer, HeartbeatReply
from agent.contract.states import Desired
from tests.contract.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden"
pytestmark = pytest.mark.req("AGENT-01", "OPS-11")


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_message_encodes_to_its_golden_sample(name: str) -> None:
    message, _ = SAMPLES[name]
    assert json.loads(wire.encode(message)) == golden(name)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_golden_sample_decodes_to_the_message(name: str) -> None:
    message, kind = SAMPLES[name]
    assert wire.decode(json.dumps(golden(name)).encode(), kind) == message


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_unknown_fields_are_ignored_at_every_depth(name: str) -> None:
    message, kind = SAMPLES[name]

    def add(value: Any) -> Any:
        if isinstance(value, dict):
            return {**{k: add(v) for k, v in value.items()}, "of_a_later_version": [1]}
        return [add(v) for v in value] if isinstance(value, list) else value

    raw = golden(name)
    widened = add(raw)
    # mappings hold what they are given: there an unknown key is content, not a field
    for holder, field in (("spec", "env"), ("reason", "params")):
        if widened.get(holder):
            widened[holder][field] = raw[holder][field]
    for report in widened.get("reports", []):
        for why in (report["reason"], *report["notes"]):
            why["params"].pop("of_a_later_version")
    assert wire.decode(json.dumps(widened).encode(), kind) == message


def test_every_message_has_a_golden_sample() -> None:
    tagged = {
        cls
        for _, cls in inspect.getmembers(messages, inspect.isclass)
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.tag is not None
    } - {messages.DialTarget, messages.DoorTarget}
    assert tagged == {type(message) for message, _ in SAMPLES.values()}
    assert {f.stem for f in GOLDEN.glob("*.json")} == set(SAMPLES)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"<html>502</html>", b'{"type":"granted","spec":{}}'])
def test_anything_else_is_no_answer(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
        wire.decode(data, HeartbeatAnswer)


def test_a_list_cut_short_is_no_answer() -> None:
    whole = wire.encode(HeartbeatReply("h", True, [DesiredTask("task-a", 1, Desired.RUN)]))
    for end in range(len(whole)):
        with pytest.raises(msgspec.DecodeError):
            wire.decode(whole[:end], HeartbeatAnswer)


tasks = st.lists(
    st.builds(
        DesiredTask,
        task_id=st.text(min_size=1, max_size=20),
        attempt=st.integers(1, 99),
        desired=st.sampled_from(Desired),
    ),
    unique_by=lambda t: (t.task_id, t.attempt),
    max_size=8,
)


@given(tasks, st.randoms())
def test_hash_of_a_list_knows_no_order(listed: list[DesiredTask], random: Any) -> None:
    other = list(listed)
    random.shuffle(other)
    assert wire.hash_desired(listed) == wire.hash_desired(other)


@given(tasks.filter(bool))
def test_hash_tells_another_wish(listed: list[DesiredTask]) -> None:
    first = listed[0]
    flipped = Desired.STOP if first.desired is Desired.RUN else Desired.RUN
    changed = [msgspec.structs.replace(first, desired=flipped), *listed[1:]]
    assert wire.hash_desired(listed) != wire.hash_desired(changed)


def test_a_heartbeat_from_before_whose_memory_it_is_was_told() -> None:
    """An agent of today's version that is a build behind, and one of the version before (OPS-11)."""
    raw = golden("heartbeat_door")
    for name in ("volume_prefixes", "host_ipc", "images"):
        del raw[name]
    for card in raw["cards"]:
        for name in ("processes", "foreign_mb", "link_group", "pcie_root"):
            del card[name]
        for holder in card["held_by"]:
            del holder["attempt"], holder["name"]
    del raw["host"]["in_container"]
    told = wire.decode(json.dumps(raw).encode(), messages.HeartbeatRequest)
    assert told.host.in_container is None
    assert (told.volume_prefixes, told.host_ipc, told.images) == (None, None, None)
    (card,) = told.cards
    assert (card.processes, card.foreign_mb, card.link_group, card.pcie_root) == (None, None, None, "")
    assert card.held_by == [messages.CardHolder(pid=4711, used_mb=900, task_id="task-k3m5q7aaaabbbbcc")]
