"""The agent's readings through the real NVML binding, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml.cards import FakeCards, fake_cards, nvml_library

__all__ = ["fake_cards", "nvml_library"]
ROOT = Path(__file__).parents[2]
READ = """
import msgspec
from agent.gpu.cards import CardsUnknown, read_cards
try:
    print(msgspec.json.encode(read_cards()).decode())
except CardsUnknown as error:
    print('"unknown"')
"""


def read(cards: FakeCards) -> list[dict[str, object]] | str:
    env = {"PATH": os.environ["PATH"], **cards.environment}
    done = subprocess.run([sys.executable, "-c", READ], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.req("AGENT-01")
@pytest.mark.slow
def test_cards_as_the_driver_tells_them(fake_cards: FakeCards) -> None:
    assert read(fake_cards) == []
    fake_cards.have(
        {
            "uuid": "GPU-a",
            "name": "NVIDIA L20",
            "mem": 46068,
            "used": 1024,
            "util": 7,
            "temp": 40,
            "cc": "8.9",
            "holders": "4711:700,4712:324",
        },
        {"uuid": "GPU-b", "name": "Tesla V100", "mem": 16384, "cc": "7.0", "untold": 1},
    )
    first, second = read(fake_cards)
    assert first == {
        "uuid": "GPU-a",
        "index": 0,
        "vendor": "nvidia",
        "model": "NVIDIA L20",
        "vram_total_mb": 46068,
        "vram_used_mb": 1024,
        "temperature_c": 40,
        "utilization_percent": 7,
        "driver_version": "580.95.05",
        "compute_capability": "8.9",
        "mig_capable": True,
        "mps_capable": True,
        "quarantined": False,
        "held_by": [],
        "processes": [
            {"pid": 4711, "used_mb": 700, "task_id": "", "attempt": 0, "name": ""},
            {"pid": 4712, "used_mb": 324, "task_id": "", "attempt": 0, "name": ""},
        ],
        "foreign_mb": None,
        "link_group": None,
        "pcie_root": "",
    }
    assert second["processes"] is None
    assert (second["uuid"], second["mig_capable"], second["compute_capability"]) == ("GPU-b", False, "7.0")
    fake_cards.have({"uuid": "GPU-a"}, {"uuid": "GPU-b", "lost": 1})
    assert read(fake_cards) == "unknown"  # and not one card less
    fake_cards.lose_driver()
    assert read(fake_cards) == []


@pytest.mark.req("SCHED-03")
@pytest.mark.slow
def test_which_cards_are_near_each_other(fake_cards: FakeCards) -> None:
    fake_cards.have(*({"link": link, "root": root} for link, root in [(0, 0), (1, 0), (0, 1), (1, 1)]))
    told = read(fake_cards)
    assert [(card["link_group"], card["pcie_root"]) for card in told] == [  # type: ignore[index]
        (None, "0"),
        (1, "0"),
        (None, "2"),
        (1, "2"),
    ]


WHOSE = """
import sys
from pathlib import Path
import msgspec
from agent.gpu.cardgate import CardGate
from agent.gpu.cards import read_cards
from agent.gpu.ownership import Occupant
from tests.agent.fakes import make_settings
folder = Path(sys.argv[1])
gate = CardGate(make_settings(folder), folder / "cards.json")
gate.look(read_cards(), 0.0)
gate.occupants = lambda: {("task-a", 2): Occupant("task-a.2", ["GPU-a"])}
Path(sys.argv[2]).write_text(sys.argv[3])
(card,) = gate.look(read_cards(), 5.0)
print(msgspec.json.encode(card).decode())
"""


@pytest.mark.req("SCHED-04")
@pytest.mark.slow
def test_real_processes_on_a_card_are_known_by_their_task_or_their_name(
    fake_cards: FakeCards, tmp_path: Path
) -> None:
    """The driver's word and the kernel's together: one process of ours, one of somebody else."""
    ours = {"HETEROFLOW_TASK_ID": "task-a", "HETEROFLOW_ATTEMPT": "2", "PATH": os.environ["PATH"]}
    engine = subprocess.Popen(["sh", "-c", "echo; exec cat"], env=ours, stdin=-1, stdout=-1)
    stranger = subprocess.Popen(["sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
    try:
        for child in (engine, stranger):
            assert child.stdout is not None
            child.stdout.readline()  # its environment is its own by now
        fake_cards.have({"uuid": "GPU-a", "mem": 46068, "used": 300})
        before = fake_cards.file.read_text()
        holders = f"{engine.pid}:9000,{stranger.pid}:700"
        fake_cards.have({"uuid": "GPU-a", "mem": 46068, "used": 10000, "holders": holders})
        after = fake_cards.file.read_text()
        fake_cards.file.write_text(before)
        done = subprocess.run(
            [sys.executable, "-c", WHOSE, str(tmp_path), str(fake_cards.file), after],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **fake_cards.environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        card = json.loads(done.stdout)
    finally:
        for child in (engine, stranger):
            child.kill()
            child.wait()
    assert card["foreign_mb"] == 1000  # the stranger's, and 300 that nobody is named for
    first, second = card["processes"]
    assert (first["pid"], first["task_id"], first["attempt"], first["used_mb"]) == (
        engine.pid,
        "task-a",
        2,
        9000,
    )
    assert (second["pid"], second["task_id"], second["used_mb"]) == (stranger.pid, "", 700)
    assert second["name"] in ("cat", "sh")
