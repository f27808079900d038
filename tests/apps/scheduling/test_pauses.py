"""For one task others give way once in a while: the snapshot tells when they last did, and the pause."""

from typing import Any

import pytest

from agent.contract.states import State
from apps.scheduling.policy.decide import decide
from apps.scheduling.selectors import load_snapshot
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("SCHED-11")]

NOW = factories.NOW


def test_for_a_task_that_was_made_room_for_lately_nobody_gives_way(settings: Any) -> None:
    settings.PREEMPTION_PAUSE_S = 600.0
    node = factories.make_node(cards=1)
    low = factories.make_group(priority=0, preemptible=True)
    victim = factories.make_task(low, state=State.RUNNING, attempt=1, node=node)
    factories.make_claim(victim, node)
    high = factories.make_task(factories.make_group(priority=5), gpu_required=1, made_room_at=NOW)

    snapshot = load_snapshot(NOW)
    assert snapshot is not None
    assert snapshot.preemption_pause_s == 600.0
    assert [task.made_room_at for task in snapshot.tasks] == [NOW]
    assert not decide(snapshot, NOW).preemptions

    settings.PREEMPTION_PAUSE_S = 0.0
    again = load_snapshot(NOW)
    assert again is not None
    assert [made.victims for made in decide(again, NOW).preemptions] == [(victim.pk,)]
    assert high.pk in {made.task_id for made in decide(again, NOW).preemptions}
