"""From a decision to what is written: the policy is pure and knows no rows, workloads no policy."""

from collections.abc import Iterable

from apps.scheduling.policy.plan import Placed, Preemption
from apps.workloads.services import Placement, RoomWanted


def placement_of(placed: Placed) -> Placement:
    """What workloads commits for a placement that was decided."""
    return Placement(
        task_id=placed.task_id,
        version=placed.version,
        node_id=placed.node_id,
        cards=placed.cards,
        percent=placed.percent,
        host_ports=placed.host_ports,
        borrowed=placed.borrowed,
        gang=placed.gang,
    )


def rooms_of(preemptions: Iterable[Preemption]) -> list[list[RoomWanted]]:
    """What workloads commits for preemptions, as it belongs together: a gang's, and each other by itself."""
    found: dict[str | int, list[RoomWanted]] = {}
    for one in preemptions:
        room = RoomWanted(one.task_id, one.version, one.node_id, one.victims, one.cards, one.percent)
        found.setdefault(one.gang or one.task_id, []).append(room)
    return list(found.values())
