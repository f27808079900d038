"""Only cards that the engine can use: by vendor, and by compute capability where the card tells it
(ENG-01). An engine or image of the tenant's own is not judged."""

from agent.contract.codes import Code
from agent.engines.catalog import compute_capability_at_least, get_engine
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("engine_vendor", order=60)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    engine = get_engine(task.engine)
    if engine is None or task.has_command:
        return cards
    if not task.gpu_required:
        return cards if "cpu" in engine.vendors else Refused(Code.RUNTIME_CANNOT)
    left = [
        card
        for card in cards
        if card.view.vendor in engine.vendors
        and compute_capability_at_least(card.view.compute_capability or None, engine.min_compute_capability)
        is not False
    ]
    # Too few cards of any kind are the business of later checks.
    return Refused(Code.RUNTIME_CANNOT) if cards and not left else left
