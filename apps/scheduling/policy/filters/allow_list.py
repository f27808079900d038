"""A node that is not open to the task's tenant does not exist for it (TEN-09). First of all checks."""

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("allow_list", order=10, code=Code.NODE_NOT_ALLOWED, of=Of.NODE_FACTS)
def fits(ask: Ask, node: NodeFacts) -> bool:
    return node.open_to is None or ask.tenant_id in node.open_to
