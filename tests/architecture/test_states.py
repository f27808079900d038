"""One writer of states (LIFE-01)."""

import ast

import pytest

from tests.architecture import state_writes
from tests.architecture.tree import CODE, ROOT, parsed, python_files

WRITER = ROOT / "apps" / "workloads" / "state.py"


@pytest.mark.req("LIFE-01")
def test_only_one_module_writes_states() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in python_files(*CODE)
        if path != WRITER and path.relative_to(ROOT).parts[0] != "agent"
        for line, what in state_writes.find(parsed(path))
    ]
    assert not found, "states are moved by apps/workloads/state.py alone:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "task.state = 'running'",
        "a, task.state = 1, 2",
        "task.group.state: str = 'x'",
        "Task.objects.filter(pk=1).update(state='running')",
        "Task.objects.filter(pk=1).update(**{'state': 'running'})",
        "Task.objects.update_or_create(pk=1, defaults={'state': 'x'})",
        "Task(state='running')",
        "Task(state=State.RUNNING)",
        "Task.objects.filter(pk=1).update(state=State.PENDING)",
        "setattr(task, 'state', 'x')",
        "Task.objects.bulk_update(tasks, ['phase', 'state'])",
        "task.save(update_fields=['state'])",
        "cursor.execute('UPDATE workloads_task SET version = 2, state = %s')",
    ],
)
def test_each_way_to_write_is_found(source: str) -> None:
    assert state_writes.find(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "x = task.state",
        "Task.objects.filter(state='x')",
        "self.state = 1",
        "rows.update(phase='x')",
        "'SELECT state'",
    ],
)
def test_reading_is_no_write(source: str) -> None:
    assert not state_writes.find(ast.parse(source))
