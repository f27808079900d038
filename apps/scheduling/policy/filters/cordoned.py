"""A node that an operator closed for new work takes none (LIFE-09)."""

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("cordoned", order=30, code=Code.NODE_CORDONED, of=Of.NODE_FACTS)
def fits(ask: Ask, node: NodeFacts) -> bool:
    return not node.cordoned
