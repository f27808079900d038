"""Taking tasks off what is lost: silent nodes (RECOV-02), cards that vanished (RECOV-04).

Owns how many may be taken off within a minute. When a node or card counts as lost is recovery's word.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Q

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Phase, State
from apps.core.leases import Held
from apps.fleet.models import Card, Node
from apps.workloads.models import CardClaim, Event, Task
from apps.workloads.policy.moves import RUNS_ON_NODE, is_wake_requested
from apps.workloads.services.ending import last_error, move_off, release_untaken
from apps.workloads.services.mending import each_task
from apps.workloads.state import move_of, transition

ACTOR = "recovery"


def lose_nodes(*, lease: Held, node_ids: Collection[int], now: datetime) -> int:
    """Move the work of silent nodes elsewhere (RECOV-02), and what sleeps there and was asked to wake
    (SLEEP-04); what is just falling asleep there sleeps. Claims stay: what still runs there holds its card
    until the node is back and says that it is gone; what nobody took on is freed."""
    nodes = {node.pk: node for node in Node.objects.select_related("liveness").filter(pk__in=node_ids)}

    def lose(task: Task) -> bool:
        waits_to_wake = is_wake_requested(State(task.state), Desired(task.desired))
        there = task.node_id in nodes and (task.state in RUNS_ON_NODE or waits_to_wake)
        return there and _lose_node(task, nodes[task.node_id or 0], now)

    return _evict(lease, _on_nodes(node_ids), lose, now)


def lose_cards(*, lease: Held, card_ids: Collection[int], now: datetime) -> int:
    """Fail the tasks of lost cards; answers how many. Each keeps its claim until its node confirms it."""

    def lose(task: Task) -> bool:
        return task.state in RUNS_ON_NODE and _lose_card(task, card_ids, now)

    return _evict(lease, _on_cards(card_ids), lose, now)


def note_held_back(*, node_ids: Collection[int], card_ids: Collection[int]) -> int:
    """Say at those that serve on by the cap alone that they do, and take it back where that is over; answers
    how many tasks are still on lost nodes and cards."""
    ids = set(_on_nodes(node_ids)) | set(_on_cards(card_ids)) if node_ids or card_ids else set()
    why = {"reason_code": Code.EVICTIONS_CAPPED, "reason_params": {"max": settings.EVICTIONS_PER_MINUTE}}
    running = Task.objects.filter(state=State.RUNNING)
    if ids:
        running.filter(pk__in=ids).exclude(reason_code=Code.EVICTIONS_CAPPED).update(**why)
    over = running.filter(reason_code=Code.EVICTIONS_CAPPED).exclude(pk__in=ids)
    over.update(reason_code=Code.READY, reason_params={})
    return len(ids)


def _on_nodes(node_ids: Collection[int]) -> list[int]:
    """High priority first."""
    wanted = Q(state__in=RUNS_ON_NODE) | Q(state=State.SLEEPING, desired=Desired.RUN)
    there = Task.objects.filter(wanted, node__in=node_ids)
    return list(there.order_by("-group__priority", "pk").values_list("pk", flat=True))


def _on_cards(card_ids: Collection[int]) -> list[int]:
    shares = CardClaim.objects.filter(
        card__in=card_ids,
        claim__released_at__isnull=True,
        claim__attempt=F("claim__task__attempt"),
        claim__task__state__in=RUNS_ON_NODE,
    )
    tasks = shares.order_by("-claim__task__group__priority", "claim__task").values_list(
        "claim__task", flat=True
    )
    return list(dict.fromkeys(tasks))


def _evict(lease: Held, ids: list[int], lose: Callable[[Task], bool], now: datetime) -> int:
    room = max(0, settings.EVICTIONS_PER_MINUTE - _count_lately(now)) if ids else 0
    return each_task(lease, ids[:room], lose)


def _count_lately(now: datetime) -> int:
    lately = Event.objects.filter(at__gt=now - timedelta(minutes=1), actor=ACTOR)
    return lately.filter(code__in=[Code.NODE_LOST, Code.CARD_LOST]).count()


def _lose_node(task: Task, node: Node, now: datetime) -> bool:
    seen = node.liveness.last_seen_at
    silent_s = int((now - seen).total_seconds()) if seen else None
    sleeps_on = task.state == State.DRAINING and task.desired != Desired.STOP
    if not sleeps_on:
        release_untaken(task, now=now)
    why = reason(Code.NODE_LOST, node=node.name, silent_s=silent_s)
    return move_off(task, why, actor=ACTOR, now=now)


def _lose_card(task: Task, card_ids: Collection[int], now: datetime) -> bool:
    card = (
        Card.objects.select_related("node")
        .filter(
            pk__in=card_ids,
            present=False,
            claims__claim__task=task,
            claims__claim__attempt=task.attempt,
            claims__claim__released_at__isnull=True,
        )
        .first()
    )
    if card is None:
        return False  # it came back, or the task has gone on
    why = reason(Code.CARD_LOST, card=card.uuid, node=card.node.name)
    failed = move_of(task, State.FAILED, why, phase=Phase.LEAVING, last_error=last_error(why, None, now))
    return transition(failed, actor=ACTOR, now=now)
