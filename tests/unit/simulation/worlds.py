"""Small fleets and workloads for tests of the replay, as files are written."""

from pathlib import Path
from typing import Any

import yaml

from apps.scheduling.policy.snapshot import Reserve, Snapshot
from apps.scheduling.simulation.fleet import Fleet, read_fleet
from apps.scheduling.simulation.replay import Replay, Rules
from apps.scheduling.simulation.report import report
from apps.scheduling.simulation.workload import Workload, read_workload

RULES = Rules(reserve=Reserve(0, 0.0), weights={}, stop_s=10.0)


def cap_of(own: int | None, cards: int) -> int:
    return 8 * max(1, cards) if own is None else own


def nodes(name: str = "n", cards: int = 1, **fields: Any) -> dict[str, Any]:
    card = {"count": cards, "vendor": "nvidia", "model": "NVIDIA L20", "memory_mb": 48_000}
    card |= fields.pop("card", {})
    return {"name": name, "cards": [card] if cards else [], **fields}


def work(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "tenant": "shop", **fields}


def service(name: str, **fields: Any) -> dict[str, Any]:
    return work(name, percent=40, memory_mb=10_000, **fields)


def training(name: str, **fields: Any) -> dict[str, Any]:
    return work(name, **{"task_type": "training", "memory_mb": 10_000, **fields})


def fleet_of(folder: Path, *entries: dict[str, Any], **more: Any) -> Fleet:
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump({"nodes": list(entries), **more}))
    return read_fleet(file, cap_of)


def workload_of(folder: Path, *tasks: dict[str, Any], seed: int | None = None, **more: Any) -> Workload:
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump({"tasks": list(tasks), **more}))
    return read_workload(file, seed)


def replayed(
    fleet: Fleet, workload: Workload, until_s: float | None = None, rules: Rules = RULES
) -> dict[str, Any]:
    """The report; every snapshot on the way is looked through."""
    replay = Replay(fleet, workload, rules, each=nothing_above_capacity)
    record = replay.run(until_s)
    found = report(fleet, workload, record, replay.places)
    no_card_twice(found, {item.name for item in workload.items if not item.work.container_ports})
    return found


def nothing_above_capacity(snapshot: Snapshot) -> None:
    """What stands on a card fits there: promises, the card alone, kinds of work, tenants."""
    for node in snapshot.nodes:
        assert node.inference_cap is not None and node.inference_count <= node.inference_cap, node.name
        for card in node.cards:
            where = f"{node.name} card {card.index}"
            holds = [hold for hold in card.holds if not hold.reserved_for]
            own = [hold for hold in holds if not hold.borrowed]
            assert sum(100 if hold.percent is None else hold.percent for hold in own) <= 100, where
            assert len({hold.inference for hold in own}) <= 1, where
            assert sum(hold.borrowed for hold in holds if not hold.leaving) <= 1, where
            for hold in holds:
                for other in holds:
                    assert snapshot.may_share(hold.tenant_id, other.tenant_id), where


def no_card_twice(found: dict[str, Any], without_port: set[str]) -> None:
    """The same from outside: at the beginning of each stay, all that stands on its cards with it. A share of
    who has no port is not counted (SCHED-16)."""
    by_card: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for placement in found["placements"]:
        for card in placement["cards"]:
            by_card.setdefault((placement["node"], card), []).append(placement)
    for where, stays in by_card.items():
        for one in stays:
            at = one["at_s"]
            here = [s for s in stays if s["at_s"] <= at and (s["until_s"] is None or s["until_s"] > at)]
            own = [stay for stay in here if not stay["borrowed"]]
            counted = [stay for stay in own if stay["percent"] is None or stay["task"] not in without_port]
            assert sum(stay["percent"] or 100 for stay in counted) <= 100, where
            assert len(here) - len(own) <= 1, where


def stays(found: dict[str, Any]) -> list[tuple[str, float, str, str]]:
    """(task, at, node, how it ended) of each placement."""
    return [(p["task"], p["at_s"], p["node"], p["ended"]) for p in found["placements"]]
