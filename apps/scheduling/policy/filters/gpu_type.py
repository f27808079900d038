"""Only cards of the type that was asked for.

The type is compared word by word, without regard to case and to the maker's own words, so that
"RTX 4090" means "NVIDIA GeForce RTX 4090" and "H20" never means "H200".
"""

import re
from functools import lru_cache

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView

_MAKERS = frozenset({"nvidia", "geforce", "amd", "radeon", "instinct", "tesla", "quadro", "ascend", "hygon"})


@lru_cache(maxsize=4096)
def words(name: str) -> tuple[str, ...]:
    """The telling words of a card's name; all of them where only the maker is named."""
    found = re.findall(r"[^\W_]+", name.casefold())
    return tuple(word for word in found if word not in _MAKERS) or tuple(found)


@filter_plugin("gpu_type", order=50)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    if not task.gpu_type or not task.gpu_required:
        return cards
    wanted = words(task.gpu_type)
    left = [card for card in cards if words(card.view.model) == wanted]
    return left or Refused(Code.GPU_TYPE_MISMATCH, {"wanted": task.gpu_type})
