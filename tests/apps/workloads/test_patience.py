"""A slow load is left to the agent that watches it; the server's own deadline comes after (AGENT-08)."""

from datetime import timedelta

import pytest
from django.conf import settings

from agent.config import Settings
from agent.contract.codes import Code
from agent.contract.states import State
from apps.fleet.models import Liveness
from apps.workloads import services
from apps.workloads.models import TaskGroup
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_node, make_task

pytestmark = pytest.mark.django_db
LONG_S = 4 * 3600


@pytest.mark.req("AGENT-08", "LIFE-01")
def test_a_long_start_period_is_granted_in_full(life: Life) -> None:
    node, task = make_node(), make_task()
    TaskGroup.objects.filter(pk=task.group_id).update(health_check={"start_period_seconds": LONG_S})
    life.place(task, node)
    life.claim(task, node)
    within = NOW + timedelta(seconds=LONG_S)
    Liveness.objects.update(last_seen_at=within)
    assert services.expire_deadlines(lease=life.lease, now=within) == 0
    late = within + timedelta(seconds=settings.START_DEADLINE_S + 1)
    Liveness.objects.update(last_seen_at=late)
    assert services.expire_deadlines(lease=life.lease, now=late) == 1
    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.LOAD_TIMEOUT)
    assert task.reason_params["after_s"] == LONG_S + settings.START_DEADLINE_S + 1


@pytest.mark.req("AGENT-08")
def test_progress_may_use_the_agents_whole_cap() -> None:
    agents = Settings(server_url="http://127.0.0.1", state_dir="/x")
    assert agents.load_cap_s + agents.port_wait_s < settings.START_DEADLINE_S
