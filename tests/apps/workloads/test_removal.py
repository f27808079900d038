"""Removing deleted groups: one that can not go does not hold the others."""

import pytest

from agent.contract.states import State
from apps.workloads import services
from apps.workloads.models import TaskGroup
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_task

pytestmark = pytest.mark.django_db


@pytest.mark.req("RECOV-05")
def test_a_group_that_can_not_be_removed_does_not_stop_the_others(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = (make_group(deleted_at=NOW, state=State.STOPPED) for _ in range(2))
    task = make_task(good, state=State.STOPPED)
    delete = TaskGroup.delete

    def fails_for_bad(group: TaskGroup, *args: object, **kwargs: object) -> object:
        if group == bad:
            raise RuntimeError("a row that something protects")
        return delete(group, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TaskGroup, "delete", fails_for_bad)
    assert services.finish_deleted(lease=life.lease, now=NOW) == [task.public_id]
    assert list(TaskGroup.objects.all()) == [bad]
