"""Nothing starts on a card while memory of an attempt that ended is held there (AGENT-06): late is waited
for, held for long is quarantine with the owner's pid, over restarts of the agent too."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.contract.codes import Code, reason
from agent.contract.messages import CardHolder, CardReport
from agent.contract.states import Observed, Phase
from agent.gpu.cardgate import CardGate
from agent.gpu.ownership import Key, Occupant, owner_of_process
from tests.agent.fakes import World, make_settings, make_spec

pytestmark = pytest.mark.req("AGENT-06")
A, B = ("task-a", 1), ("task-b", 1)
STRANGER = CardHolder(900, 3000)


class Card:
    """One card of a node with what runs and what holds its memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[Key, Occupant] = {}
        self.owners = {100: A, 101: A, 200: B}
        self.starts: dict[int, int | None] = {}
        self.now = 1000.0
        self.again()

    def again(self) -> None:
        """The agent is another one from now on."""
        self.gate = CardGate(
            make_settings(self.folder),
            self.folder / "cards.json",
            owner_of=self._owner_of,
            start_of=lambda pid: self.starts.get(pid, 7),
            name_of=lambda pid: f"program-{pid}",
        )
        self.gate.occupants = lambda: self.running

    def _owner_of(self, pid: int, running: Mapping[Key, Occupant]) -> Key | None:
        key = self.owners.get(pid)
        return key if key in running else None  # the container is gone: so is what it tells

    def run(self, *keys: Key) -> None:
        self.running = {key: Occupant(f"container-{key[0]}", ["GPU-1"]) for key in keys}

    def read(
        self, *holders: CardHolder, used_mb: int | None = None, after_s: float = 5.0, named: bool = True
    ) -> CardReport:
        """`named` False: the driver does not tell who holds memory."""
        self.now += after_s
        used = sum(holder.used_mb or 0 for holder in holders) + 300 if used_mb is None else used_mb
        processes = list(holders) if named else None
        (told,) = self.gate.look(
            [CardReport("GPU-1", 0, "nvidia", "L20", 46068, used, processes=processes)], self.now
        )
        return told

    @property
    def busy(self) -> bool:
        return self.gate.hindrance(["GPU-1"], self.now) is not None

    def quarantine(self) -> None:
        """task-a has left a process behind."""
        self.read(STRANGER)
        self.run(A)
        self.read(STRANGER, CardHolder(100, 9000))
        self.run()
        self.read(STRANGER, CardHolder(100, 9000))
        self.read(STRANGER, CardHolder(100, 9000), after_s=60)


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card(tmp_path)


def test_a_strangers_memory_hinders_nothing_and_is_told_to_nobody(card: Card) -> None:
    told = card.read(STRANGER)
    assert not card.busy and (told.quarantined, told.held_by, told.vram_used_mb) == (False, [], 3300)


def test_after_an_end_a_reading_must_show_the_card_free(card: Card) -> None:
    card.read()
    card.run(A)
    card.read(CardHolder(100, 9000), CardHolder(101, 200))
    card.run()
    assert card.busy  # nothing was read since
    told = card.read(CardHolder(101, 200))  # a child that is late
    assert card.busy and not told.quarantined
    assert card.gate.hindrance(["GPU-2"], card.now) is None
    card.read()
    assert not card.busy


def test_memory_that_no_process_is_named_for_is_waited_for_as_well(card: Card) -> None:
    card.read(STRANGER)
    card.run(A)
    card.read(STRANGER, CardHolder(100, 9000))
    card.run()
    card.read(STRANGER, used_mb=3300 + 9000)  # the driver frees late
    assert card.busy
    told = card.read(STRANGER, used_mb=3300 + 9000, after_s=60)
    assert told.quarantined and told.held_by == [CardHolder(0, 9000, "task-a", 1)]
    # A stranger that came meanwhile is listed, and so no matter.
    assert not card.read(STRANGER, CardHolder(901, 20000)).quarantined
    assert not card.busy


def test_held_for_long_is_quarantine_with_the_owners_pid_until_it_is_free(card: Card) -> None:
    card.quarantine()
    told = card.read(STRANGER, CardHolder(100, 9000))
    assert told.quarantined and told.held_by == [CardHolder(100, 9000, "task-a", 1)]
    assert card.gate.hindrance(["GPU-1"], card.now) == reason(
        Code.CARD_BUSY, card="GPU-1", used_mb=9000, pid=100
    )
    assert card.gate.is_quarantined(["GPU-1"]) and not card.gate.is_quarantined(["GPU-2"])
    assert not card.read(STRANGER).quarantined
    assert not card.busy


def test_another_process_of_the_same_number_is_not_the_owner(card: Card) -> None:
    card.quarantine()
    card.starts[100] = 8
    assert not card.read(STRANGER, CardHolder(100, 9000)).quarantined


def test_an_agent_that_starts_anew_knows_it_still(card: Card) -> None:
    card.quarantine()
    card.again()
    assert card.busy
    assert card.read(STRANGER, CardHolder(100, 9000)).quarantined
    card.run(B)
    card.read(STRANGER, CardHolder(200, 500))
    card.run()
    card.again()  # killed before anybody looked: it ran there when it was last looked at
    assert card.busy
    card.read(STRANGER, CardHolder(200, 500))
    assert card.busy
    card.read(STRANGER)
    assert not card.busy


def test_a_damaged_file_is_no_end_of_the_agent(card: Card, caplog: pytest.LogCaptureFixture) -> None:
    (card.folder / "cards.json").write_bytes(b'{"cards":')
    card.again()
    assert "cards.json" in caplog.text and not card.busy


def test_an_operator_releases_a_card_whatever_is_held(card: Card) -> None:
    card.quarantine()
    card.gate.release(["GPU-1", "GPU-unknown"])
    assert not card.busy
    assert not card.read(STRANGER, CardHolder(100, 9000)).quarantined
    card.run(B)
    card.read(STRANGER, CardHolder(100, 9000), CardHolder(200, 500))
    card.run()
    card.read(STRANGER, CardHolder(100, 9000))  # what was released is a stranger's now
    assert not card.busy


def test_who_shares_the_card_goes_on_and_is_not_taken_for_the_other(card: Card) -> None:
    card.read()
    card.run(A, B)
    card.read(CardHolder(100, 900), CardHolder(200, 500))
    card.run(B)
    card.read(CardHolder(100, 900), CardHolder(200, 20000))
    assert card.busy
    card.read(CardHolder(200, 20000))
    assert not card.busy


def test_one_that_slept_and_woke_is_there_again(card: Card) -> None:
    card.read()
    card.run(A)
    card.read(CardHolder(100, 900))
    card.run()
    card.read(CardHolder(100, 900))
    card.run(A)
    card.read(CardHolder(100, 900))
    assert not card.busy


def test_a_card_that_is_gone_holds_nothing(card: Card) -> None:
    card.quarantine()
    assert card.gate.look([], card.now) == []
    assert not card.busy


def test_a_process_is_known_by_its_environment_and_its_container() -> None:
    """Really: a child with what the agent gives every engine."""
    env = {**os.environ, "HETEROFLOW_TASK_ID": "task-a", "HETEROFLOW_ATTEMPT": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], env=env, stdin=-1, stdout=-1
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # its environment is its own by now
        running = {A: Occupant("task-a.1", ["GPU-1"]), ("task-a", 2): Occupant("task-a.2", ["GPU-1"])}
        assert owner_of_process(child.pid, running) == A
        assert owner_of_process(child.pid, {B: Occupant("task-b.1", [])}) is None
        (group, *_) = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
        assert owner_of_process(child.pid, {B: Occupant(group, [])}) == B
    finally:
        child.kill()
        child.wait()
    assert owner_of_process(child.pid, running) is None


def test_a_process_in_a_container_is_its_containers_whatever_its_environment_says() -> None:
    """Who writes the code in a container may set there what it likes, also another one's task."""
    env = {**os.environ, "HETEROFLOW_TASK_ID": "task-a", "HETEROFLOW_ATTEMPT": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], env=env, stdin=-1, stdout=-1
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        (own, *_) = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
        running = {A: Occupant("another-container", ["GPU-1"]), B: Occupant(own, ["GPU-1"])}
        assert owner_of_process(child.pid, running) == B
    finally:
        child.kill()
        child.wait()


# --- what the supervisor makes of it --------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_start_waits_for_its_card(world: World) -> None:
    world.cards.busy = reason(Code.CARD_BUSY, card="GPU-1", used_mb=9000, pid=100)
    world.list(world.want())
    await world.go(20, steps=20)
    assert world.runtime.started == []
    assert [r.observed for r in world.supervisor.running()] == [Observed.STARTING]
    world.cards.busy = None
    await world.go(1, steps=2)
    assert world.reports.told[-1].phase is Phase.READY
    world.cards.busy = reason(Code.CARD_BUSY, card="GPU-1", used_mb=9000, pid=100)
    await world.go(5, steps=5)
    assert len(world.supervisor.running()) == 1  # what runs is no matter of it


async def test_a_start_on_a_card_in_quarantine_has_failed(world: World) -> None:
    world.cards.busy = reason(Code.CARD_BUSY, card="GPU-1", used_mb=9000, pid=100)
    world.cards.quarantined = True
    world.list(world.want())
    await world.go(1, steps=4)
    last = world.reports.told[-1]
    assert (last.observed, last.why) == (Observed.EXITED, world.cards.busy)
    assert world.runtime.started == []


async def test_what_is_asleep_or_only_claimed_is_on_no_card(world: World) -> None:
    world.specs[A] = make_spec(gpu_uuids=["GPU-1"])
    assert world.supervisor.occupants() == {}
    await world.run_to_ready()
    assert world.supervisor.occupants() == {A: Occupant("task-a.1", ["GPU-1"])}
