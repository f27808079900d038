"""Writes of the work records: every change of a group, task, claim or port goes through here."""

from apps.workloads.services.acts import Act, Did, Said, said
from apps.workloads.services.claiming import claim_task
from apps.workloads.services.creating import create_group, rows_of_group
from apps.workloads.services.emptying import (
    begin_replacement,
    clear_node,
    end_drained,
    evict_task,
    move_task,
    remove_retired,
    settle_pair,
    unplace_sleeper,
)
from apps.workloads.services.leaving import (
    STARTABLE,
    STOPPABLE,
    StopOutcome,
    finish_deleted,
    request_delete,
    request_stop,
    start_again,
    stop_one,
)
from apps.workloads.services.lending import end_due_loans, end_loan
from apps.workloads.services.losing import lose_cards, lose_nodes, note_held_back
from apps.workloads.services.mending import (
    each_task,
    expire_deadlines,
    rebuild_failed,
    wake_waiting,
)
from apps.workloads.services.pipelines import keep_pipelines_together
from apps.workloads.services.placing import (
    Placement,
    PlacementClash,
    commit_placements,
    note_refusals,
    units,
)
from apps.workloads.services.preempting import RoomWanted, drop_kept_room, make_room
from apps.workloads.services.reporting import apply_report, reconcile_node
from apps.workloads.services.scaling import set_replicas
from apps.workloads.services.sleeping import (
    call_back,
    ensure_may_sleep,
    leave_routes,
    note_quiet,
    order_sleep,
    request_sleep,
    request_wake,
)

__all__ = [
    "STARTABLE",
    "STOPPABLE",
    "Act",
    "Did",
    "Placement",
    "PlacementClash",
    "RoomWanted",
    "Said",
    "StopOutcome",
    "apply_report",
    "begin_replacement",
    "call_back",
    "claim_task",
    "clear_node",
    "commit_placements",
    "create_group",
    "drop_kept_room",
    "each_task",
    "end_drained",
    "end_due_loans",
    "end_loan",
    "ensure_may_sleep",
    "evict_task",
    "expire_deadlines",
    "finish_deleted",
    "keep_pipelines_together",
    "leave_routes",
    "lose_cards",
    "lose_nodes",
    "make_room",
    "move_task",
    "note_held_back",
    "note_quiet",
    "note_refusals",
    "order_sleep",
    "rebuild_failed",
    "reconcile_node",
    "remove_retired",
    "request_delete",
    "request_sleep",
    "request_stop",
    "request_wake",
    "rows_of_group",
    "said",
    "set_replicas",
    "settle_pair",
    "start_again",
    "stop_one",
    "units",
    "unplace_sleeper",
    "wake_waiting",
]
