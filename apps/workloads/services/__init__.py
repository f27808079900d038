"""Writes of the work records: every change of a group, task, claim or port goes through here."""

from apps.workloads.services.claiming import claim_task
from apps.workloads.services.creating import create_group
from apps.workloads.services.emptying import (
    begin_replacement,
    clear_node,
    end_drained,
    evict_task,
    move_task,
    remove_retired,
    settle_pair,
)
from apps.workloads.services.leaving import (
    STARTABLE,
    STOPPABLE,
    StopOutcome,
    finish_deleted,
    request_delete,
    request_stop,
    start_again,
)
from apps.workloads.services.mending import expire_deadlines, lose_nodes, rebuild_failed
from apps.workloads.services.placing import Placement, PlacementClash, commit_placements, note_refusals
from apps.workloads.services.reporting import apply_report, reconcile_node

__all__ = [
    "STARTABLE",
    "STOPPABLE",
    "Placement",
    "PlacementClash",
    "StopOutcome",
    "apply_report",
    "begin_replacement",
    "claim_task",
    "clear_node",
    "commit_placements",
    "create_group",
    "end_drained",
    "evict_task",
    "expire_deadlines",
    "finish_deleted",
    "lose_nodes",
    "move_task",
    "note_refusals",
    "rebuild_failed",
    "reconcile_node",
    "remove_retired",
    "request_delete",
    "request_stop",
    "settle_pair",
    "start_again",
]
