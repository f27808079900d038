"""The codes of alerts: how grave each is, and whether it ends by itself.

Pure. A code's sentence stands in apps/core/texts.py.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Kind:
    """`lasting`: a condition that is looked at again and again, and closed when it is over. All others
    happen once; they are closed when they did not happen again for ALERT_QUIET_S."""

    severity: Severity
    lasting: bool


KINDS = {
    "node_lost": Kind(Severity.CRITICAL, lasting=True),
    "node_door_closed": Kind(Severity.WARNING, lasting=True),
    "card_lost": Kind(Severity.CRITICAL, lasting=True),
    "card_held": Kind(Severity.CRITICAL, lasting=True),
    "all_nodes_silent": Kind(Severity.CRITICAL, lasting=True),
    "evictions_held_back": Kind(Severity.CRITICAL, lasting=True),
    "loop_failing": Kind(Severity.CRITICAL, lasting=True),
    "loop_late": Kind(Severity.CRITICAL, lasting=True),
    "tasks_waiting": Kind(Severity.WARNING, lasting=True),
    "route_unserved": Kind(Severity.CRITICAL, lasting=True),
    "usage_behind": Kind(Severity.WARNING, lasting=True),
    "usage_unheard": Kind(Severity.WARNING, lasting=True),
    "runtime_silent": Kind(Severity.CRITICAL, lasting=False),
    "clock_skew": Kind(Severity.WARNING, lasting=False),
    "machine_mismatch": Kind(Severity.CRITICAL, lasting=False),
    "foreign_placement": Kind(Severity.CRITICAL, lasting=False),
    "report_failed": Kind(Severity.WARNING, lasting=False),
}
