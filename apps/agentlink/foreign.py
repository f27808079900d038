"""A node that names a placement which is not its own (AGENT-02, TEN-04).

The node hears one refusal, `not_this_nodes` 403, for another node's placement and for none, so that
nothing can be learnt from it. Owns that the server's side tells them apart: the first is somebody with a
node's credential at another's things, the second what any agent may say of a task that was deleted.
"""

import logging
from datetime import datetime

from agent.contract.codes import Code
from apps.core.errors import Refusal
from apps.fleet.models import Node
from apps.fleet.services.alerts import raise_alert
from apps.workloads.models import Claim

log = logging.getLogger("heteroflow.security")
# Agents of contract 1 repeat a refused report and log for ever; they keep the answers that they know.
KNOWN_FROM = 2


def refuse(node: Node, task_id: str, attempt: int, *, what: str, contract: int, now: datetime) -> None:
    """Raises Refusal 403; comes back to an agent of a contract that does not know it, whom the caller answers
    as before. Logs and alerts where the placement is another node's. `what` names the message."""
    _note(node, task_id, attempt, what, now)
    if contract >= KNOWN_FROM:
        raise Refusal(Code.NOT_THIS_NODES, 403)


def _note(node: Node, task_id: str, attempt: int, what: str, now: datetime) -> None:
    holder = (
        Claim.objects.filter(task__public_id=task_id, attempt=attempt)
        .exclude(node=node)
        .values_list("node__public_id", flat=True)
        .first()
    )
    if holder is None:
        return
    log.warning(
        "node %s was refused: its %s names %s.%s, a placement of node %s",
        *(node.public_id, what, task_id, attempt, holder),
    )
    raise_alert(node=node, code="foreign_placement", now=now, what=what, task=task_id)
