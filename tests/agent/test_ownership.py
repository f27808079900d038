"""Whose memory lies on a card, as the server is told: ours by attempt, strangers by name, and nothing where
nobody can tell (SCHED-04)."""

import subprocess
from pathlib import Path

import pytest

from agent.contract.machine import MOST_PROCESSES
from agent.contract.messages import CardHolder, CardReport
from agent.gpu.ownership import name_of_process
from tests.agent.test_card_gate import STRANGER, A, B, Card
from tests.stack import until

pytestmark = pytest.mark.req("SCHED-04", "AGENT-01")


@pytest.fixture
def card(tmp_path: Path) -> Card:
    """It is idle: 300 MB are used by nobody."""
    made = Card(tmp_path)
    made.read()
    return made


def test_where_nothing_of_ours_runs_all_is_foreign_whoever_is_named(card: Card) -> None:
    told = card.read(STRANGER)
    assert told.processes == [CardHolder(900, 3000, name="program-900")]
    assert told.foreign_mb == 3300
    assert card.read(STRANGER, used_mb=3300, named=False).foreign_mb == 3300


def test_ours_are_told_by_attempt_and_come_first(card: Card) -> None:
    card.run(A, B)
    told = card.read(STRANGER, CardHolder(200, 500), CardHolder(100, 9000), CardHolder(101, 200))
    assert told.processes == [
        CardHolder(100, 9000, "task-a", 1),
        CardHolder(200, 500, "task-b", 1),
        CardHolder(101, 200, "task-a", 1),
        CardHolder(900, 3000, name="program-900"),
    ]
    assert told.foreign_mb == 3300  # the stranger's, and what no process was named for


def test_an_attempt_that_ended_holds_foreign_memory(card: Card) -> None:
    card.run(A, B)
    card.read(CardHolder(100, 9000), CardHolder(200, 500))
    card.run(B)
    told = card.read(CardHolder(100, 9000), CardHolder(200, 500))
    assert told.foreign_mb == 9300
    assert told.processes == [CardHolder(100, 9000, "task-a", 1), CardHolder(200, 500, "task-b", 1)]


def test_a_driver_that_names_nobody_leaves_it_unknown(card: Card) -> None:
    card.run(A)
    told = card.read(used_mb=9300, named=False)
    assert (told.processes, told.foreign_mb) == (None, None)
    told = card.read(used_mb=9300)  # an empty list, and yet there is memory that may be ours
    assert (told.processes, told.foreign_mb) == ([], None)
    assert card.read(used_mb=700).foreign_mb == 700  # an engine that has yet to take any


def test_a_process_of_another_namespace_leaves_it_unknown(card: Card) -> None:
    card.run(A)
    card.starts[4711] = None
    told = card.read(CardHolder(4711, 9000))
    assert told.foreign_mb is None
    assert told.processes == [CardHolder(4711, 9000, name="program-4711")]
    card.run()
    assert card.read(CardHolder(4711, 9000)).foreign_mb == 9300


def test_memory_of_one_process_that_is_not_told_leaves_it_unknown(card: Card) -> None:
    card.run(A)
    assert card.read(CardHolder(100, None), STRANGER, used_mb=9000).foreign_mb is None


def test_what_is_used_may_be_unknown_itself(card: Card) -> None:
    card.run(A)
    (told,) = card.gate.look([CardReport("GPU-1", 0, "nvidia", "L20")], card.now)
    assert told.foreign_mb is None


def test_no_more_than_a_few_are_told_and_ours_among_them(card: Card) -> None:
    card.run(A)
    crowd = [CardHolder(1000 + number, 20 + number) for number in range(200)]
    told = card.read(*crowd, CardHolder(100, 1))
    assert told.processes is not None and len(told.processes) == MOST_PROCESSES
    assert told.processes[0] == CardHolder(100, 1, "task-a", 1)
    assert told.processes[1].used_mb == 219
    assert told.foreign_mb == 300 + sum(one.used_mb or 0 for one in crowd)


def test_a_stranger_is_named_as_the_kernel_knows_it_without_its_arguments() -> None:
    child = subprocess.Popen(["sleep", "600.123"])
    try:
        until(lambda: name_of_process(child.pid) == "sleep", "it has our name until its exec is over")
    finally:
        child.kill()
        child.wait()
    assert name_of_process(child.pid) == ""
