"""What a task mounts lies in folders that the node mounts from, compared by path segment (AGENT-05).

A node that told no folders is not refused here: its agent checks every path itself before a start.
"""

from collections.abc import Mapping
from functools import lru_cache

from agent.contract.codes import Code
from agent.contract.paths import is_within
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import NodeFacts
from apps.scheduling.policy.registry import Of, Value, filter_plugin


@lru_cache(maxsize=4096)
def _outside(mounts: tuple[str, ...], prefixes: tuple[str, ...] | None) -> str | None:
    if prefixes is None:
        return None
    return next((path for path in mounts if not any(is_within(path, one) for one in prefixes)), None)


def _tell(ask: Ask, node: NodeFacts, card: None, left: int) -> Mapping[str, Value]:
    return {"path": _outside(ask.mounts, node.volume_prefixes)}


@filter_plugin(
    "volumes",
    order=46,
    code=Code.VOLUME_NOT_THERE,
    of=Of.NODE_FACTS,
    applies=lambda ask: bool(ask.mounts),
    tell=_tell,
)
def fits(ask: Ask, node: NodeFacts) -> bool:
    return _outside(ask.mounts, node.volume_prefixes) is None
