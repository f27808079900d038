"""Whether a service could ever stand on the cards that its tenant may use, were they all empty (SVC-09,
SCHED-05, SCHED-07, SCHED-13). Pure.

Owns what is refused when a service is created; room that is merely taken now, or on a node that is merely
offline, is waited for. The checks are the scheduler's own, on empty cards.
"""

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from agent.contract.codes import Code
from agent.contract.states import Parallelism, RuntimeKind
from apps.core.errors import FieldError
from apps.scheduling.policy.explain import judge_nodes
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import CardView, NodeView, Reserve, Snapshot, TaskView

_OF_SIZE = frozenset({Code.VRAM_SHORT, Code.ENGINE_MEMORY, Code.CARDS_SHORT})


class CardKind(msgspec.Struct, frozen=True):
    """So many alike cards of one node. `vram_total_mb` None = not known."""

    vendor: str
    model: str
    vram_total_mb: int | None
    compute_capability: str
    count: int


NodeKind = tuple[CardKind, ...]


def find_misfits(
    task: TaskView, parallelism: Parallelism, kinds: Iterable[NodeKind], reserve: Reserve, *, estimated: bool
) -> list[FieldError]:
    """What can never be, by field and with its numbers; [] for what may fit sooner or later, also where the
    tenant has no card yet. `kinds`: what its nodes are like, each once. `estimated`: the memory was reckoned
    from the model's path, and not told."""
    if not task.gpu_required:
        return []
    most = reserve.limit_percent
    if not task.whole_cards and task.percent is not None and task.percent > most:
        return [FieldError("gpu_memory_utilization", "promise_too_large", task.percent, {"max": most})]
    kinds = tuple(kinds)
    said = _say(task, kinds, reserve)
    if None in said:
        return []
    refused = [one for one in said if one is not None]
    codes = {one.code for one in refused}
    if parallelism is Parallelism.PIPELINE_PARALLEL and task.gpu_type and codes <= {Code.GPU_TYPE_MISMATCH}:
        return [FieldError("task.gpu_type", "gpu_type_nowhere", task.gpu_type)]
    sizes = [one for one in refused if one.code in _OF_SIZE]
    if not sizes or Code.VRAM_UNKNOWN in codes:
        return []
    narrow = [one for one in sizes if one.code != Code.CARDS_SHORT]
    nearest = min(narrow or sizes, key=lambda one: one.shortfall)
    if nearest.code == Code.CARDS_SHORT:
        largest = _most_cards(task, kinds, reserve)
        return [FieldError("task.gpu_required", "cards_nowhere", task.gpu_required, {"largest": largest})]
    params = {name: nearest.params[name] for name in ("wanted_mb", "free_mb")}
    if estimated:
        return [FieldError("task.model_path", "model_nowhere", None, params)]
    return [FieldError("task.estimated_gpu_memory_mb", "memory_nowhere", task.memory_mb, params)]


def _most_cards(task: TaskView, kinds: Collection[NodeKind], reserve: Reserve) -> int:
    """How many cards the task could have at most, were its memory no matter; 0 = none."""
    fewer = (
        replace(task, gpu_required=count, memory_mb=None) for count in range(task.gpu_required - 1, 0, -1)
    )
    return next((one.gpu_required for one in fewer if None in _say(one, kinds, reserve)), 0)


def _say(task: TaskView, kinds: Iterable[NodeKind], reserve: Reserve) -> list[Refused | None]:
    """What each kind of node would say, were it empty, online and free of all that passes."""
    # Only what concerns the cards is asked; the rest may change tomorrow.
    alone = replace(task, ports=(), volumes=(), gang="", gang_size=1, refused_by=frozenset())
    nodes = tuple(_empty_node(number, kind) for number, kind in enumerate(kinds, start=1))
    verdicts = judge_nodes(Snapshot(tasks=(alone,), nodes=nodes, reserve=reserve), [alone])[alone.id]
    return [verdict.refused for verdict in verdicts]


def _empty_node(number: int, kind: NodeKind) -> NodeView:
    alike = [card for card in kind for _ in range(card.count)]
    return NodeView(
        id=number,
        public_id="",
        name="",
        online=True,
        cordoned=False,
        runtime=RuntimeKind.DOCKER,
        engines=frozenset(),
        open_to=None,
        cards=tuple(
            CardView(
                id=number * 1000 + index,
                index=index,
                vendor=card.vendor,
                model=card.model,
                vram_total_mb=card.vram_total_mb,
                used_mb=None if card.vram_total_mb is None else 0,
                compute_capability=card.compute_capability or None,
                foreign_mb=0,
            )
            for index, card in enumerate(alike)
        ),
        cpu_percent=0.0,
        memory_percent=0.0,
        disk_percent=0.0,
    )
