"""A node that was not heard of lately takes nothing."""

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("online", order=20, code=Code.NODE_OFFLINE, of=Of.NODE_FACTS)
def fits(ask: Ask, node: NodeFacts) -> bool:
    return node.online
