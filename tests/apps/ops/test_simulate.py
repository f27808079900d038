"""`manage.py simulate`: the shipped files, both outputs, refusals; no database and no keys."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from tests.architecture.tree import ROOT

pytestmark = pytest.mark.req("SCHED-15")

EXAMPLES = ROOT / "examples" / "simulate"
SHOP = (EXAMPLES / "shop-fleet.yaml", EXAMPLES / "shop-workload.yaml")
LARGE = (EXAMPLES / "large-fleet.yaml", EXAMPLES / "large-workload.yaml")


def simulated(files: tuple[Path, Path], *options: str) -> str:
    out = StringIO()
    call_command("simulate", *map(str, files), *options, stdout=out)
    return out.getvalue()


def as_json(files: tuple[Path, Path], *options: str) -> dict[str, Any]:
    return dict(json.loads(simulated(files, "--json", *options)))


def test_the_shop_shows_all_that_placing_does():
    found = as_json(SHOP)

    assert found["fleet"]["cards"] == 44
    kinds = {
        "Tesla P100-PCIE-16GB",
        "Tesla T4",
        "NVIDIA A10",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA L20",
        "Ascend 910B",
    }
    assert set(found["utilisation"]["by_model"]) == kinds
    placed = found["placements"]
    assert any(one["percent"] for one in placed)  # a card is shared
    assert any(len(one["cards"]) == 4 for one in placed)  # several for one engine
    assert {one["node"] for one in placed if one["task"].startswith("huge.")} == {
        "l20-1",
        "l20-2",
    }  # a pipeline
    assert any(one["borrowed"] for one in placed) and found["loans"]
    assert found["preemptions"] and all(
        victim["priority"] < made["priority"] for made in found["preemptions"] for victim in made["victims"]
    )
    # Cards that lab's services sleep on are lent to its own training, never to a rival's.
    assert {loan["borrower"].partition("-")[0] for loan in found["loans"]} == {"fine"}
    still = {one["task"]: {why["code"] for why in one["reasons"]} for one in found["waiting"]}
    assert "gpu_type_mismatch" in still["dream"] and "vram_short" in still["too-large"]
    assert found["tasks"]["ended_early"]["node_lost"] > 0


def test_the_shop_is_replayed_alike_each_time_and_otherwise_by_another_seed():
    assert simulated(SHOP, "--json") == simulated(SHOP, "--json")
    assert as_json(SHOP, "--seed", "2")["placements"] != as_json(SHOP)["placements"]


def test_the_shop_comes_out_as_it_did():
    """A change of the policy shows here. After it was meant: `manage.py simulate ...` of both files with
    `--json` into golden/shop.json, and say in the commit what changed."""
    golden = json.loads((Path(__file__).parent / "golden" / "shop.json").read_text())
    found = as_json(SHOP)

    for part in golden:
        assert found[part] == golden[part], part
    assert found.keys() == golden.keys()


def test_people_read_tables():
    text = simulated(SHOP)

    assert text.startswith(
        "A small mixed shop: 10 nodes, 44 cards\nFour hours of a working day: 63 tasks, seed 1\n"
    )
    for heading in (
        "wait for the first place",
        "mean use",
        "refusal",
        "Still waiting",
        "Preemptions",
        "Loans",
    ):
        assert f"\n{heading}" in text
    assert "dream since 16m 40s: InsufficientResources: none of " in text
    assert " instead of " in text and "(--json has all)" in text


def test_until_stops_there():
    found = as_json(SHOP, "--until", "700.5")

    assert found["until_s"] == 700.5
    assert max(one["at_s"] for one in found["placements"]) <= 700.5


def test_what_can_not_be_used_is_refused_in_a_sentence(tmp_path: Path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("nodes: [{name: n, count: 0, cards: []}]")
    with pytest.raises(CommandError, match=r"bad\.yaml: nodes\[0\]\.count is 0: Expected `int` >= 1\."):
        simulated((bad, SHOP[1]))
    with pytest.raises(CommandError, match="no number of seconds"):
        simulated(SHOP, "--until", "soon")


@pytest.mark.slow
def test_the_large_fleet_has_5000_nodes_and_40000_cards_and_its_first_minutes_are_replayed():
    found = as_json(LARGE, "--until", "120")

    assert (found["fleet"]["nodes"], found["fleet"]["cards"]) == (5_000, 40_000)
    assert found["decisions"] == 2
    assert found["tasks"]["ever_placed"] > 1_000


def test_it_follows_the_settings_of_the_installation():
    assert settings.VRAM_RESERVE_RATIO == 0.10
    before = as_json(SHOP, "--until", "100")["tasks"]["ever_placed"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "VRAM_RESERVE_RATIO", 0.9)
        assert as_json(SHOP, "--until", "100")["tasks"]["ever_placed"] < before


@pytest.mark.slow
def test_it_runs_on_a_machine_without_keys_or_database(tmp_path: Path):
    env = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "none")}
    command = [sys.executable, "manage.py", "simulate", *map(str, SHOP), "--until", "60"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("A small mixed shop")
    assert not (tmp_path / "none").exists()
