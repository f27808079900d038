"""Host ports for tasks (SVC-04). Owns choosing them; that there are enough is a filter's matter."""

from collections.abc import Collection

from apps.scheduling.policy.snapshot import TaskView

Ports = tuple[tuple[int, int], ...]  # (container port, host port)


def choose_ports(task: TaskView, held: Collection[int], more: set[int], first: int, last: int) -> Ports:
    """A host port for each that the task names, out of the node's range where it names none. `held` are, and
    those of tasks before it, `more`, to which its own are added."""
    for _, host in task.ports:
        if host:
            more.add(host)
    count = last - first + 1
    # Each attempt begins elsewhere in the range: a port that something else on the machine holds
    # does not meet every rebuild.
    step = (task.id * 7 + task.attempt * 61) % count if count > 0 else 0
    chosen = []
    for container, host in task.ports:
        if not host:
            while first + step in held or first + step in more:
                step = (step + 1) % count
            host = first + step
            more.add(host)
        chosen.append((container, host))
    return tuple(chosen)
