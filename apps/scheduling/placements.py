"""From a decision to what is written: the policy is pure and knows no rows, workloads no policy."""

from apps.scheduling.policy.plan import Placed
from apps.workloads.services import Placement


def placement_of(placed: Placed) -> Placement:
    """What workloads commits for a placement that was decided."""
    return Placement(
        task_id=placed.task_id,
        version=placed.version,
        node_id=placed.node_id,
        cards=placed.cards,
        percent=placed.percent,
        host_ports=placed.host_ports,
    )
