"""A service's fault timeline in the reader's language (LIFE-06).

Scope is the caller's for the group; names of nodes out of sight are hidden here.
"""

from typing import Any

from apps.core import texts
from apps.inference.selectors import hide_nodes, tell
from apps.tenants.scope import Viewer
from apps.workloads import selectors as work
from apps.workloads.models import TaskGroup
from apps.workloads.policy.faults import Fault, Moment, find_faults

EVENTS_READ = 5000  # the newest ones: a timeline, no archive; older events stay readable as such


def faults_of(viewer: Viewer, group: TaskGroup) -> list[Fault]:
    """Newest first. Of tasks that are gone since a node was emptied nothing is told."""
    rows = work.events(viewer).filter(group=group, task__isnull=False).order_by("-at", "-pk")
    fields = ("task__public_id", "attempt", "at", "from_state", "to_state", "code", "params")
    return find_faults(Moment(*row) for row in reversed(rows.values_list(*fields)[:EVENTS_READ]))


def describe_faults(viewer: Viewer, faults: list[Fault]) -> list[dict[str, Any]]:
    """In the order given."""
    said = [fault.cause.params for fault in faults] + [fault.action[1] for fault in faults if fault.action]
    safe = hide_nodes(viewer, said)
    return [
        {
            "task": fault.cause.task,
            "attempt": fault.cause.attempt,
            "at": fault.cause.at,
            "cause": tell(fault.cause.code, safe(fault.cause.params)),
            "action": tell(fault.action[0], safe(fault.action[1])) if fault.action else None,
            "until": fault.until,
            "duration_s": fault.duration_s,
            "outcome": fault.outcome,
            "outcome_text": texts.say(f"fault_{fault.outcome}"),
        }
        for fault in faults
    ]
