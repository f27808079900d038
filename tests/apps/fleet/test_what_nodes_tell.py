"""What placing asks of a node, as heartbeats tell it: load, whose memory, links, folders, images.

Written only where it changed, and nothing that was not told is zero."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.contract.messages import CardHolder, HostReport
from apps.core import hints
from apps.fleet.models import Card, CardSample, Node, NodeSample
from tests import factories
from tests.apps.fleet.test_heartbeats import NOW, beat, card

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-01")]


@pytest.fixture
def node() -> Node:
    """A node that has joined and never spoken."""
    return factories.make_node(
        cards=0, load=False, last_seen_at=None, incarnation="", runtime="", engines=[], dial={}
    )


@pytest.fixture
def kicks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(hints, "kick", told.append)
    return told


def host(cpu: float | None = 10.0, free_mb: int | None = 60000, disk: float | None = 50.0) -> HostReport:
    return HostReport(16, 65536, free_mb, cpu, disk)


def load(node: Node) -> tuple[float | None, float | None, float | None]:
    row = NodeSample.objects.get(node=node)
    return row.cpu_percent, row.memory_percent, row.disk_percent


@pytest.mark.req("SCHED-03")
def test_load_is_kept_in_percent_and_what_is_not_told_is_empty(node: Node) -> None:
    beat(node, 1, host=host(cpu=12.34, free_mb=16384))
    assert load(node) == (12.3, 75.0, 50.0)
    beat(node, 2, host=host(None, None, None))
    assert load(node) == (None, None, None)
    beat(node, 3, host=host(cpu=float("nan"), free_mb=-5, disk=140.0))
    assert load(node) == (None, None, None)
    beat(node, 4, host=HostReport(0, 0, 0, 0.0, 0.0))
    assert load(node) == (0.0, None, 0.0)


@pytest.mark.req("SCHED-03")
def test_load_is_written_by_steps_and_where_it_comes_to_the_other_side(node: Node, kicks: list[str]) -> None:
    beat(node, 1, host=host(cpu=80.0))
    kicks.clear()
    beat(node, 2, host=host(cpu=89.0, free_mb=59000, disk=50.9))
    assert load(node)[0] == 80.0
    beat(node, 3, host=host(cpu=90.5))
    assert load(node)[0] == 90.5 and kicks == ["scheduling.place"]
    beat(node, 4, host=host(cpu=99.0))
    assert load(node)[0] == 90.5
    beat(node, 5, host=host(cpu=89.9))
    assert load(node)[0] == 89.9 and len(kicks) == 2
    beat(node, 6, host=host(cpu=79.0))
    assert load(node)[0] == 79.0 and len(kicks) == 2  # a step that decides nothing


@pytest.mark.req("SCHED-03")
def test_a_quiet_node_costs_one_write_and_no_statement_more_for_its_load(node: Node) -> None:
    beat(node, 1, host=host())
    with CaptureQueriesContext(connection) as seen:
        beat(node, 2, now=NOW + timedelta(seconds=5), host=host(cpu=14.0))
    writes = [q["sql"] for q in seen if q["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]
    assert len(writes) == 1 and "fleet_liveness" in writes[0]
    assert not [q for q in seen if 'FROM "fleet_nodesample"' in q["sql"]]


@pytest.mark.req("SCHED-04")
def test_whose_memory_it_is_is_kept_by_attempt_and_the_largest_stranger_by_name(node: Node) -> None:
    holders = [
        CardHolder(1, 700, "task-a", 2),
        CardHolder(2, 300, "task-a", 2),
        CardHolder(3, None, "task-b", 1),
        CardHolder(4, 100, name="Xorg"),
        CardHolder(5, 900, name="python3"),
    ]
    beat(node, 1, cards=[card(vram_used_mb=3000, processes=holders, foreign_mb=1300)])
    sample = CardSample.objects.get()
    assert sample.owned_mb == {"task-a.2": 1000, "task-b.1": None}
    assert (sample.foreign_mb, sample.foreign) == (1300, "python3")

    beat(node, 2, cards=[card(vram_used_mb=3000, processes=None, foreign_mb=None)])
    sample = CardSample.objects.get()
    assert (sample.owned_mb, sample.foreign_mb, sample.foreign) == (None, None, "")
    beat(node, 3, cards=[card(vram_used_mb=3000, processes=[], foreign_mb=3000)])
    sample = CardSample.objects.get()
    assert (sample.owned_mb, sample.foreign_mb) == ({}, 3000)


@pytest.mark.req("SCHED-04")
def test_shares_are_written_only_when_they_changed_enough(node: Node, kicks: list[str]) -> None:
    def told(sequence: int, ours: int, foreign: int, task: str = "task-a") -> CardSample:
        holders = [CardHolder(1, ours, task, 1)]
        beat(node, sequence, cards=[card(vram_used_mb=9000, processes=holders, foreign_mb=foreign)])
        return CardSample.objects.get()

    told(1, 5000, 4000)
    kicks.clear()
    same = told(2, 5063, 3937)
    assert (same.owned_mb, same.foreign_mb) == ({"task-a.1": 5000}, 4000) and not kicks
    assert told(3, 5064, 3936).owned_mb == {"task-a.1": 5064} and len(kicks) == 1
    assert told(4, 5064, 4000).foreign_mb == 4000
    assert told(5, 5064, 4000, task="task-b").owned_mb == {"task-b.1": 5064}


def test_neighbours_of_a_card_are_kept(node: Node) -> None:
    beat(node, 1, cards=[card(0, link_group=0, pcie_root="0"), card(1, link_group=-7, pcie_root="r\0" * 90)])
    first, second = Card.objects.filter(node=node).order_by("index")
    assert (first.link_group, first.pcie_root) == (0, "0")
    assert (second.link_group, second.pcie_root) == (None, "r" * 50)
    beat(node, 2, cards=[card(0), card(1)])
    assert not Card.objects.filter(link_group__isnull=False).exists()


@pytest.mark.req("AGENT-05", "AGENT-06")
def test_folders_ipc_and_images_are_kept_and_nothing_told_is_no_answer(node: Node) -> None:
    beat(node, 1, volume_prefixes=["/srv", "/data"], host_ipc=False, images=["vllm/vllm-openai:v1"])
    row = Node.objects.get(pk=node.pk)
    assert (row.volume_prefixes, row.host_ipc, row.images) == (
        ["/data", "/srv"],
        False,
        ["vllm/vllm-openai:v1"],
    )
    beat(node, 2, volume_prefixes=[])
    row = Node.objects.get(pk=node.pk)
    assert (row.volume_prefixes, row.host_ipc, row.images) == ([], None, [])
    beat(node, 3)
    assert Node.objects.get(pk=node.pk).volume_prefixes is None


@pytest.mark.req("SCHED-04")
@pytest.mark.parametrize("size", [-1, 2**24 + 1, 2**31 - 1, 2**40])
def test_memory_that_no_card_has_is_no_answer(node: Node, size: int) -> None:
    """Placing asks all nodes at once: figures of one must not spoil the reckoning for the others."""
    whose = [CardHolder(n, size, "task-a", 1) for n in (1, 2)]
    told = card(1, vram_total_mb=size, vram_used_mb=size, foreign_mb=size, processes=whose)
    summed = card(2, processes=[CardHolder(n, 2**24, "task-a", 1) for n in (3, 4)])
    beat(node, 1, cards=[card(), told, summed])
    fresh = Card.objects.get(index=1)
    sample = fresh.sample
    assert (fresh.vram_total_mb, sample.vram_used_mb, sample.foreign_mb) == (None, None, None)
    assert sample.owned_mb == {"task-a.1": None}
    assert Card.objects.get(index=2).sample.owned_mb == {"task-a.1": None}, "the sum, too"


def test_an_agent_that_floods_fills_no_row(node: Node) -> None:
    holders = [CardHolder(n, 1, f"task-{n}" * 99, 1, "n\0" * 999) for n in range(9999)]
    beat(
        node,
        1,
        cards=[card(processes=holders, foreign_mb=2**40)],
        volume_prefixes=[f"/{n}" for n in range(9999)] + ["/" + "x" * 5000, "/a\0b"],
        images=[f"image:{n}" for n in range(9999)],
    )
    sample = CardSample.objects.get()
    assert len(sample.owned_mb) == 64 and max(map(len, sample.owned_mb)) <= 52
    assert sample.foreign_mb is None
    row = Node.objects.get(pk=node.pk)
    assert (len(row.volume_prefixes), len(row.images)) == (64, 256)
