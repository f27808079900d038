"""Whatever work meets whatever fleet: nothing above capacity at any moment, nobody lost, the same again."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.policy.snapshot import Reserve
from apps.scheduling.simulation.replay import Rules
from tests.examples import examples
from tests.unit.simulation.worlds import fleet_of, nodes, replayed, workload_of

pytestmark = pytest.mark.req("SCHED-15")

TENANTS: dict[str, Any] = {"a": {"shares_with": ["b"]}, "b": {"loan_max_minutes": 2}, "c": {"lends": False}}

spans = st.lists(st.integers(0, 60), min_size=0, max_size=4, unique=True).map(
    lambda some: [[first * 10, last * 10] for first, last in zip(*[iter(sorted(some))] * 2, strict=False)]
)
machines = st.fixed_dictionaries(
    {
        "count": st.integers(1, 2),
        "cards": st.integers(0, 3),
        "card": st.fixed_dictionaries(
            {
                "memory_mb": st.sampled_from([16_000, 48_000]),
                "model": st.sampled_from(["NVIDIA A10", "NVIDIA L20"]),
                "foreign_mb": st.sampled_from([0, 9_000]),
            }
        ),
        "open_to": st.sampled_from([None, ["a"], ["b", "c"]]),
        "offline": spans,
    }
)
jobs = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["a", "b", "c"]),
        "at_s": st.integers(0, 300),
        "count": st.integers(1, 3),
        "every_s": st.integers(0, 30),
        "duration_s": st.one_of(st.none(), st.integers(0, 400)),
        "priority": st.integers(0, 3),
        "preemptible": st.booleans(),
        "gpu_type": st.sampled_from(["", "A10", "L20"]),
        "memory_mb": st.sampled_from([None, 2_000, 12_000]),
    }
)
forms = st.sampled_from(
    [
        {"percent": 30},
        {"percent": 60, "sleeps": [[50, 200], [250, 500]]},
        {"sleeps": [[20, 280]]},
        {"cards": 0, "memory_mb": None, "engine": ""},
        {"cards": 2, "parallelism": "tensor_parallel"},
        {"stages": 2, "parallelism": "pipeline_parallel"},
        {"task_type": "training"},
        {"task_type": "training", "cards": 2},
        {"task_type": "container"},
        {"percent": 20, "ports": 0},
        {"replicas": 2, "percent": 40},
    ]
)
work = st.lists(st.tuples(jobs, forms), min_size=1, max_size=8)


@given(
    entries=st.lists(machines, min_size=1, max_size=3),
    some=work,
    fair=st.booleans(),
    period=st.sampled_from([0, 1, 25]),
)
@settings(max_examples=examples(60), deadline=None)
def test_nothing_above_capacity_and_nobody_lost(
    entries: list[dict[str, Any]], some: list[tuple[dict[str, Any], dict[str, Any]]], fair: bool, period: int
):
    rules = Rules(
        Reserve(100, 0.05), weights={"spread": 2.0}, fair_share=fair, stop_s=5, hold_s=60, pause_s=90
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet = fleet_of(folder, *(nodes(f"n{place}", **entry) for place, entry in enumerate(entries)))
        tasks = [{"name": f"t{place}", **job, **form} for place, (job, form) in enumerate(some)]
        workload = workload_of(folder, *tasks, tenants=TENANTS, period_s=period)
    found = replayed(fleet, workload, 900, rules)

    counts = found["tasks"]
    assert counts["arrived"] == len(workload.items)
    assert counts["arrived"] == sum(counts[name] for name in ("finished", "running", "sleeping", "waiting"))
    assert counts["placements"] == len(found["placements"])
    for use in ("cards_percent", "memory_percent"):
        percent = found["utilisation"]["all"][use]
        assert percent is None or 0 <= percent <= 100.001
    assert all(loan["ended_s"] is None or loan["ended_s"] >= loan["at_s"] for loan in found["loans"])
    assert replayed(fleet, workload, 900, rules) == found
