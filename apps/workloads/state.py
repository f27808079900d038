"""The only writer of task and group states: compare-and-set moves with their events (LIFE-01).

A move names the state and version it starts from; where a row has gone on meanwhile nothing is
written, which is a normal outcome. Moves, events and derived group states are one transaction.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from django.db import connection, transaction
from django.db.models import F, QuerySet

from agent.contract.codes import Reason
from agent.contract.states import Parallelism, State
from apps.core import hints, rows, versions
from apps.workloads.models import Event, Task, TaskGroup
from apps.workloads.policy.moves import MOVES, derive_group_state, is_allowed
from apps.workloads.policy.pipelines import derive_pipeline_state

__all__ = [
    "MOVES",
    "ImpossibleMove",
    "Move",
    "derive_again",
    "lock_groups",
    "move_of",
    "transition",
    "transition_many",
]

# What of a replica stands in the published table: where it serves, may be called back, or sleeps.
_ROUTED = frozenset({State.RUNNING, State.DRAINING, State.SLEEPING})
_LEAVES = (State.RUNNING, State.DRAINING)
_TOGETHER = frozenset({Parallelism.PIPELINE_PARALLEL})  # forms whose tasks are nothing without each other
_CHUNK = 2000  # rows a statement: 2,000 x 16 values stay below SQLite's 32,766


class Group(NamedTuple):
    """What of a group its state depends on."""

    pk: int
    public_id: str
    parallelism: str
    state: str


Place = tuple[int, int]  # a task's group (row id) and attempt


class ImpossibleMove(Exception):
    """The table (LIFE-02) does not know this move: an error in the program, never in the data."""


class Move(msgspec.Struct, frozen=True):
    """One intended move. `deadline_s` counts from now (None = no deadline); `fields` are further
    columns of the task that change with it."""

    task_id: int
    version: int
    from_: State
    to: State
    reason: Reason
    deadline_s: float | None = None
    fields: dict[str, Any] = {}


def move_of(task: Task, to: State, reason: Reason, **more: Any) -> Move:
    """A move of a task from the state and version that this instance shows."""
    deadline_s = more.pop("deadline_s", None)
    return Move(task.pk, task.version, State(task.state), to, reason, deadline_s, more)


def transition(move: Move, *, actor: str, now: datetime) -> bool:
    """Carry out one move; False where the task has gone on meanwhile. Raises ImpossibleMove."""
    return move.task_id in transition_many([move], actor=actor, now=now)


def transition_many(
    moves: Sequence[Move], *, actor: str, now: datetime, groups: Sequence[Group] | None = None
) -> set[int]:
    """Carry out many moves in one transaction; answers the row ids of the tasks that moved. `groups`: all of
    theirs, from `lock_groups` in this transaction, where the caller has them.

    Raises ImpossibleMove before anything is written.
    """
    for move in moves:
        if not is_allowed(move.from_, move.to):
            raise ImpossibleMove(f"{move.from_} -> {move.to}")
    if not moves:
        return set()
    with transaction.atomic():
        groups = lock_groups([move.task_id for move in moves]) if groups is None else groups
        moved: dict[int, Place] = {}
        for same in _by_columns(moves, now).values():
            for start in range(0, len(same), _CHUNK):
                moved |= _compare_and_set(same[start : start + _CHUNK])
        done = [move for move in moves if move.task_id in moved]
        _write_events(done, moved, actor, now)
        _derive_groups(groups, now)
        if any(_ROUTED & {move.from_, move.to} for move in done):
            table = versions.bump()
            left = [move.task_id for move in done if (move.from_, move.to) == _LEAVES]
            Task.objects.filter(pk__in=left).update(left_table=table)
    return set(moved)


def lock_groups(task_ids: Iterable[int]) -> list[Group]:
    """Lock the groups of these tasks, in order and before anything else of theirs, so that whoever
    moves siblings derives the group's state one after the other and nobody waits in a circle."""
    wanted = Task.objects.filter(pk__among={*task_ids}).values("group_id")
    return _groups(TaskGroup.objects.select_for_update().filter(pk__in=wanted).order_by("pk"))


def derive_again(group_id: int, now: datetime) -> None:
    """Bring a group's state in line after a task of it was added or removed, in the transaction that holds
    its lock."""
    _derive_groups(_groups(TaskGroup.objects.filter(pk=group_id)), now)


def _groups(found: QuerySet[TaskGroup]) -> list[Group]:
    return [Group(*row) for row in found.values_list("pk", "public_id", "parallelism", "state")]


def _by_columns(
    moves: Iterable[Move], now: datetime
) -> dict[tuple[str, ...], list[tuple[Move, dict[str, Any]]]]:
    alike: dict[tuple[str, ...], list[tuple[Move, dict[str, Any]]]] = {}
    deadlines: dict[float | None, datetime | None] = {None: None}
    for move in moves:
        if move.deadline_s not in deadlines:
            deadlines[move.deadline_s] = now + timedelta(seconds=move.deadline_s or 0)
        values = {
            "state": move.to,
            "state_since": now,
            "deadline_at": deadlines[move.deadline_s],
            "reason_code": move.reason.code,
            "reason_params": move.reason.params,
            **move.fields,
        }
        alike.setdefault(tuple(values), []).append((move, values))
    return alike


def _compare_and_set(moves: list[tuple[Move, dict[str, Any]]]) -> dict[int, Place]:
    """UPDATE ... FROM a table of the moves: one statement a chunk. Answers group and attempt of each task
    that moved, by row id. What all moves set alike is said once."""
    wanted = {name: [values[name] for _, values in moves] for name in moves[0][1]}
    alike = [name for name, column in wanted.items() if rows.is_alike(column)]
    names = [name for name in wanted if name not in alike]
    by_name = {f.attname: f for f in Task._meta.concrete_fields}
    fields = [by_name[name] for name in ("id", "version", "state", *names)]
    values: list[list[Any]] = [
        [move.task_id for move, _ in moves],
        [move.version for move, _ in moves],
        [move.from_ for move, _ in moves],
        *(wanted[name] for name in names),
    ]
    columns = [rows.prepared(f, column) for f, column in zip(fields, values, strict=True)]
    source, told = rows.table_of(fields, columns, "moves")
    quote = connection.ops.quote_name
    assignments = [f"{quote(name)} = %s" for name in alike]
    assignments += [
        f"{quote(f.attname)} = moves.column{place}" for place, f in enumerate(fields[3:], start=4)
    ]
    table = quote(Task._meta.db_table)
    sql = (
        f"UPDATE {table} SET version = {table}.version + 1, {', '.join(assignments)} "  # noqa: S608 - names only
        f"FROM {source} "
        f"WHERE {table}.id = moves.column1 AND {table}.version = moves.column2 "
        f"AND {table}.state = moves.column3 RETURNING {table}.id, {table}.group_id, {table}.attempt"
    )
    same = [by_name[name].get_db_prep_save(wanted[name][0], connection) for name in alike]
    with connection.cursor() as cursor:
        cursor.execute(sql, [*same, *told])
        return {task_id: (group_id, attempt) for task_id, group_id, attempt in cursor.fetchall()}


def _write_events(moves: list[Move], places: dict[int, Place], actor: str, now: datetime) -> None:
    if not moves:
        return
    events = {
        "group_id": [places[move.task_id][0] for move in moves],
        "task_id": [move.task_id for move in moves],
        "attempt": [places[move.task_id][1] for move in moves],
        "from_state": [move.from_ for move in moves],
        "to_state": [move.to for move in moves],
        "code": [move.reason.code for move in moves],
        "params": [move.reason.params for move in moves],
        "actor": actor,
        "at": now,
    }
    rows.insert_columns(Event, events, len(moves))


def _derive_groups(groups: Sequence[Group], now: datetime) -> None:
    present: dict[int, list[State]] = {group.pk: [] for group in groups}
    of_groups = Task.objects.filter(group__pk__among=present.keys())
    for group_id, state in of_groups.values_list("group_id", "state"):
        present[group_id].append(State(state))
    changed: dict[State, list[int]] = {}
    for group in groups:
        derive = derive_pipeline_state if group.parallelism in _TOGETHER else derive_group_state
        state = derive(present[group.pk])
        if state != group.state:
            changed.setdefault(state, []).append(group.pk)
    for state, ids in changed.items():  # a handful of statements, however many groups move at once
        TaskGroup.objects.filter(pk__among=ids).update(state=state, state_since=now, version=F("version") + 1)
    for group in groups:
        hints.announce(f"group.{group.public_id}", {"type": "group.changed"})
