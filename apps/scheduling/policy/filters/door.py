"""A node that the gateway can't reach takes no inference: nobody could call it there (AGENT-16)."""

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("door", order=35, code=Code.DOOR_CLOSED, of=Of.NODE_FACTS)
def fits(ask: Ask, node: NodeFacts) -> bool:
    return node.reachable or not ask.inference
