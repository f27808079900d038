"""Stages that talk over the network stand on nodes that have RDMA (SCHED-03)."""

from collections.abc import Sequence

from apps.scheduling.policy.one import Company
from apps.scheduling.policy.registry import company_plugin
from apps.scheduling.policy.snapshot import NodeView, TaskView


@company_plugin("rdma", gang=True)
def measure(task: TaskView, node: Company, beside: Sequence[NodeView]) -> float:
    return float(node.view.rdma)
