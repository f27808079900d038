"""What happens in a replay: arrivals, ends, sharing, gangs, eviction, loans, silence."""

from dataclasses import replace
from pathlib import Path

import pytest

from apps.scheduling.policy.plan import Plan
from apps.scheduling.simulation import replay
from tests.unit.simulation.worlds import (
    RULES,
    fleet_of,
    nodes,
    replayed,
    service,
    stays,
    training,
    work,
    workload_of,
)

pytestmark = pytest.mark.req("SCHED-15")


def test_work_waits_for_the_card_that_another_leaves(tmp_path: Path):
    jobs = [training("first", duration_s=100), training("second", at_s=5.5, duration_s=50)]
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, *jobs))

    assert stays(found) == [("first", 0.0, "n", "finished"), ("second", 100.0, "n", "finished")]
    assert [one["wait_s"] for one in found["placements"]] == [0.0, 94.5]
    assert found["until_s"] == 150.0
    assert found["tasks"]["finished"] == 2
    assert found["utilisation"]["all"]["cards_percent"] == 100.0


def test_the_scheduler_looks_at_its_period(tmp_path: Path):
    fleet = fleet_of(tmp_path, nodes())
    found = replayed(fleet, workload_of(tmp_path, training("job", at_s=61, duration_s=1), period_s=60))

    assert found["placements"][0]["at_s"] == 120.0
    assert found["waits"]["all"] == {
        **{"tasks": 1, "p50_s": 59.0, "p95_s": 59.0, "most_s": 59.0},
        **{"never_placed": 0, "longest_by_now_s": None},
    }


def test_services_share_a_card_up_to_its_commitment_and_the_rest_waits_with_numbers(tmp_path: Path):
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, service("s", count=3)))

    assert [one["percent"] for one in found["placements"]] == [40, 40]
    (waiting,) = found["waiting"]
    assert waiting["task"] == "s-3"
    assert waiting["reasons"][0] == {"code": "insufficient_resources", "params": {"nodes": 1}}
    codes = {one["code"]: one for one in found["refusals"]}
    assert codes["insufficient_resources"]["tasks"] == codes["insufficient_resources"]["waiting"] == 1
    assert found["utilisation"]["all"]["cards_percent"] is None  # no time went by


def test_a_stranger_never_stands_beside_another_tenant(tmp_path: Path):
    rival = {**service("r", at_s=10), "tenant": "rival"}
    friend = {**service("f", at_s=20), "tenant": "friend"}
    tenants = {"shop": {"shares_with": ["friend"]}, "friend": {}, "rival": {}}
    workload = workload_of(tmp_path, service("s"), rival, friend, tenants=tenants)
    found = replayed(fleet_of(tmp_path, nodes()), workload)

    assert [one["task"] for one in found["placements"]] == ["s", "f"]
    assert [one["task"] for one in found["waiting"]] == ["r"]


def test_only_tenants_on_the_list_of_a_pool_use_its_nodes(tmp_path: Path):
    lab = {**training("lab", duration_s=10), "tenant": "lab"}
    shop = training("shop", duration_s=10)
    fleet = fleet_of(tmp_path, nodes(pool="research"), pools={"research": {"open_to": ["lab"]}})
    found = replayed(fleet, workload_of(tmp_path, shop, lab))

    assert [one["task"] for one in found["placements"]] == ["lab"]
    assert found["waiting"][0]["reasons"] == [{"code": "no_node", "params": {}}]


def test_a_pipeline_stands_as_a_whole_or_not_at_all(tmp_path: Path):
    pipeline = work("p", parallelism="pipeline_parallel", stages=3, cards=2, duration_s=60)
    small = fleet_of(tmp_path, nodes(cards=2, count=2))
    assert replayed(small, workload_of(tmp_path, pipeline))["placements"] == []

    found = replayed(fleet_of(tmp_path, nodes(cards=2, count=3)), workload_of(tmp_path, pipeline))
    assert sorted(one["node"] for one in found["placements"]) == ["n-1", "n-2", "n-3"]
    assert {one["until_s"] for one in found["placements"]} == {60.0}


@pytest.mark.req("SCHED-11")
def test_higher_priority_takes_the_place_of_what_gives_way_and_it_starts_anew(tmp_path: Path):
    sweep = training("sweep", duration_s=1000, preemptible=True)
    urgent = training("urgent", at_s=100, duration_s=50, priority=9)
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sweep, urgent))

    assert stays(found) == [
        ("sweep", 0.0, "n", "preempted"),
        ("urgent", 110.0, "n", "finished"),  # what is stopped holds its room for ten seconds more
        ("sweep", 160.0, "n", "finished"),
    ]
    assert found["preemptions"] == [
        {
            **{"at_s": 100.0, "for": "urgent", "priority": 9, "node": "n", "cards": [0]},
            "victims": [{"task": "sweep", "priority": 0}],
        }
    ]
    assert found["tasks"]["ended_early"]["preempted"] == 1
    assert found["until_s"] == 1160.0


@pytest.mark.req("SCHED-11")
def test_who_gave_way_gives_way_no_second_time_within_the_pause(tmp_path: Path):
    sweep = training("sweep", duration_s=1000, preemptible=True)
    urgent = training("urgent", at_s=100, every_s=100, count=2, duration_s=50, priority=9)
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sweep, urgent))

    assert [(name, at) for name, at, _, _ in stays(found)] == [
        ("sweep", 0.0),
        ("urgent-1", 110.0),
        ("sweep", 160.0),
        ("urgent-2", 710.0),  # six hundred seconds after the sweep gave way, and ten to stop
        ("sweep", 760.0),
    ]


@pytest.mark.req("SCHED-11")
def test_others_give_way_no_second_time_for_one_task_within_the_pause(tmp_path: Path):
    """The node on which it was made room falls silent before the room is free."""
    sweeps = [training(f"sweep-{n}", at_s=n, duration_s=1000, preemptible=True) for n in (0, 1)]
    urgent = training("urgent", at_s=2, duration_s=10, priority=5)
    fleet = fleet_of(tmp_path, nodes("a"), nodes("b", offline=[[2, 1000]]))
    rules = replace(RULES, silent_s=3, pause_s=60, hold_s=30)
    found = replayed(fleet, workload_of(tmp_path, *sweeps, urgent), until_s=90, rules=rules)

    assert [(one["at_s"], one["node"]) for one in found["preemptions"]] == [(2.0, "b"), (62.0, "a")]
    assert ("urgent", 72.0, "a", "finished") in stays(found)


@pytest.mark.req("SHARE-04")
def test_training_borrows_a_sleepers_card_and_the_sleeper_wakes_once_it_is_back(tmp_path: Path):
    sleeper = work("chat", memory_mb=30_000, sleeps=[[60, 400]], duration_s=2000)
    tune = training("tune", at_s=100, memory_mb=30_000, duration_s=500)
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sleeper, tune))

    (loan,) = found["loans"]
    assert (loan["lender"], loan["borrower"], loan["at_s"], loan["ended_s"]) == ("chat", "tune", 100.0, 600.0)
    assert [one["borrowed"] for one in found["placements"]] == [False, True]
    assert found["wakes_after_loans"] == {"tasks": 1, "p50_s": 200.0, "p95_s": 200.0, "most_s": 200.0}
    assert stays(found)[1] == ("tune", 100.0, "n", "finished")


@pytest.mark.req("SHARE-04")
def test_a_loan_ends_with_its_time_and_the_borrower_waits_again(tmp_path: Path):
    sleeper = work("chat", memory_mb=30_000, sleeps=[[60, 200]], duration_s=5000)
    tune = training("tune", at_s=100, memory_mb=30_000, duration_s=4000)
    tenants = {"shop": {"loan_max_minutes": 10}}
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sleeper, tune, tenants=tenants))

    assert stays(found)[:2] == [("chat", 0.0, "n", "finished"), ("tune", 100.0, "n", "loan_ended")]
    assert found["loans"][0]["ended_s"] == 710.0
    assert found["wakes_after_loans"]["most_s"] == 510.0
    assert stays(found)[2] == ("tune", 5000.0, "n", "finished")


@pytest.mark.req("SHARE-04")
@pytest.mark.parametrize("how", ["tenant", "service", "training", "red line"])
def test_nothing_is_lent_where_that_is_not_allowed(tmp_path: Path, how: str):
    sleeper = work("chat", memory_mb=30_000, sleeps=[[60, 400]], duration_s=500, lend=how != "service")
    tune = training("tune", at_s=100, memory_mb=30_000, duration_s=50, may_borrow=how != "training")
    tune["tenant"] = "rival" if how == "red line" else "shop"
    tenants = {"shop": {"lends": how != "tenant"}, "rival": {}}
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sleeper, tune, tenants=tenants))

    assert found["loans"] == []
    assert stays(found)[1] == ("tune", 500.0, "n", "finished")


@pytest.mark.req("SHARE-04")
def test_who_borrows_from_a_service_that_ends_has_nothing_to_stand_on(tmp_path: Path):
    sleeper = work("chat", memory_mb=30_000, sleeps=[[60, 900]], duration_s=300)
    tune = training("tune", at_s=100, duration_s=400)
    found = replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, sleeper, tune))

    assert stays(found) == [
        ("chat", 0.0, "n", "finished"),
        ("tune", 100.0, "n", "loan_ended"),
        ("tune", 310.0, "n", "finished"),
    ]
    assert found["loans"][0]["ended_s"] == 300.0


@pytest.mark.req("SCHED-11")
def test_room_that_was_kept_is_free_once_its_task_stands_elsewhere(tmp_path: Path):
    sweep = training("sweep", duration_s=1000, preemptible=True)
    short = training("short", at_s=1, duration_s=103)
    urgent = training("urgent", at_s=100, duration_s=500, priority=9)
    found = replayed(fleet_of(tmp_path, nodes("a"), nodes("b")), workload_of(tmp_path, sweep, short, urgent))

    assert ("urgent", 104.0, "b", "finished") in stays(found)  # where another one ended meanwhile
    assert stays(found)[-1] == ("sweep", 110.0, "a", "finished")


def test_a_silent_node_loses_its_work_to_others(tmp_path: Path):
    fleet = fleet_of(tmp_path, nodes("a", offline=[[100, 1000]]), nodes("b", cordoned=True), nodes("c"))
    found = replayed(fleet, workload_of(tmp_path, training("job", duration_s=300)))

    assert stays(found) == [("job", 0.0, "a", "node_lost"), ("job", 130.0, "c", "finished")]


def test_a_short_silence_costs_nothing(tmp_path: Path):
    fleet = fleet_of(tmp_path, nodes("a", offline=[[100, 120]]))
    found = replayed(fleet, workload_of(tmp_path, training("job", duration_s=300)))

    assert stays(found) == [("job", 0.0, "a", "finished")]


@pytest.mark.req("SCHED-17")
def test_fair_share_takes_turns_between_tenants_where_it_is_on(tmp_path: Path):
    fleet = fleet_of(tmp_path, nodes(cards=2))
    shop, lab = training("shop", count=2), {**training("lab", at_s=0.5), "tenant": "lab"}
    workload = workload_of(tmp_path, shop, lab, period_s=1)
    late = replace(RULES, period_s=1.0)

    assert [p["task"] for p in replayed(fleet, workload, 5, late)["placements"]] == ["shop-1", "shop-2"]
    both = workload_of(tmp_path, {**shop, "at_s": 0.5}, lab, period_s=1)
    fair = replace(late, fair_share=True)
    assert {p["task"] for p in replayed(fleet, both, 5, fair)["placements"]} == {"shop-1", "lab"}


def test_until_cuts_the_replay_and_counts_what_still_runs(tmp_path: Path):
    found = replayed(
        fleet_of(tmp_path, nodes()), workload_of(tmp_path, service("s"), service("t", at_s=99)), 50
    )

    assert (found["tasks"]["arrived"], found["tasks"]["running"], found["until_s"]) == (1, 1, 50)
    assert found["utilisation"]["all"] == {"cards": 1, "cards_percent": 40.0, "memory_percent": 20.833}
    spans = found["utilisation"]["over_time"]
    assert len(spans) == 24 and {span["cards_percent"] for span in spans} == {40.0}


def test_cards_that_do_not_tell_their_memory_take_nothing(tmp_path: Path):
    found = replayed(
        fleet_of(tmp_path, nodes(card={"memory_mb": None})), workload_of(tmp_path, training("t", memory_mb=1))
    )

    assert found["placements"] == []
    assert "vram_unknown" in {one["code"] for one in found["refusals"]}


def test_equal_files_and_seeds_give_equal_reports_and_another_seed_another_one(tmp_path: Path):
    fleet = fleet_of(tmp_path, nodes(cards=4, count=2))
    job = training("job", at_s=[0, 500], duration_s=[10, 90], count=20)
    one, same = (replayed(fleet, workload_of(tmp_path, job)) for _ in range(2))

    assert one == same
    assert one != replayed(fleet, workload_of(tmp_path, job, seed=2))


def test_a_decision_that_trips_over_a_task_is_told_and_not_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = Plan(broken={1: ValueError("odd")}, refusals={1: []})
    monkeypatch.setattr(replay, "decide", lambda snapshot, now: broken)

    with pytest.raises(replay.DecisionFailed, match="failed over job at 0 s: ValueError: odd"):
        replayed(fleet_of(tmp_path, nodes()), workload_of(tmp_path, training("job")))
