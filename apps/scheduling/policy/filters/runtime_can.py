"""Whether the node's runtime can run this kind of work (AGENT-03).

The process runtime starts catalog engines by our own command lines only, and those alone that its
agent reports; Docker runs any image. An engine that needs cards does not go without. A pipeline's stage needs
an agent that knows what that is; each of those tells `host_ipc` (docs/contract.md).
"""

from agent.contract.codes import Code
from agent.contract.states import RuntimeKind
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("runtime_can", order=40, code=Code.RUNTIME_CANNOT, of=Of.NODE_FACTS)
def fits(ask: Ask, node: NodeFacts) -> bool:
    ours = not ask.has_command
    if ours and ask.engine is not None and not ask.cards and "cpu" not in ask.engine.vendors:
        return False
    if node.runtime == RuntimeKind.DOCKER:
        return not ask.host_network or node.host_ipc is not None
    if ask.host_network:
        return False
    return node.runtime == RuntimeKind.PROCESS and ours and ask.inference and ask.engine_name in node.engines
