"""What a task asks for, as filters and scores read it, and which tasks ask for the same.

Owns the reading of a task, done once for all alike. A field of TaskView that is read here stands in `SHAPE`.
"""

from collections.abc import Hashable, Sequence
from copy import copy
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from agent.contract.paths import mounted_places
from agent.contract.states import TaskType
from agent.engines.base import Engine
from agent.engines.catalog import get_engine
from apps.scheduling.policy.capacity import load_of
from apps.scheduling.policy.circles import Circle, Friends
from apps.scheduling.policy.lanes import Array
from apps.scheduling.policy.snapshot import Snapshot, TaskView, Thresholds

ShapeKey = Hashable

SHAPE = (
    "tenant_id",
    "gpu_required",
    "gpu_type",
    "memory_mb",
    "percent",
    "engine",
    "has_command",
    "ports",
    "refused_by",
    "image",
    "model_path",
    "volumes",
    "counted",
    "host_network",
    "task_type",
)
_shape_of = attrgetter(*SHAPE)

# Of an Ask. Filters and scores never branch on these: tasks that differ in them alone are asked about at
# once, and then they are arrays (`several`).
NUMBERS = {"percent": np.int16, "promise": np.int16, "need_mb": np.int64, "engine_percent": np.int16}
_numbers_of = attrgetter(*NUMBERS)

# Their model path is one inside the image: nothing is mounted, and no node has it nearer (ENG-03).
_MODEL_IN_IMAGE = frozenset({"trtllm"})


def shape_of(task: TaskView) -> ShapeKey:
    """All that filters and scores read of a task, but for its group and gang."""
    return tuple(_shape_of(task))


class Ask:
    """One shape of task. `cards` is how many it needs; `whole`: each alone; else `percent` of one, of which
    `promise` counts for the commitment (SCHED-16). `need_mb`: of each card, at least 1 where there is no
    estimate, so that a card full of strangers' memory is not taken. `engine_percent`: the share of a card of
    which the engine wants more to be free at its start, 0 = it does not ask. `friends`: tenants that its
    own may share with, itself among them. `many_at_once`: an engine over several cards (AGENT-06).
    `load`: what it puts on a card. `node_key` and `card_key` hold all that filters of facts read; `form` all
    that others do, and scores but those of the model, except `friends` and the numbers (`NUMBERS`).
    """

    __slots__ = (
        "any_ports",
        "card_key",
        "cards",
        "counted",
        "engine",
        "engine_name",
        "engine_percent",
        "estimate_mb",
        "filters",
        "form",
        "friends",
        "gpu_type",
        "has_command",
        "host_network",
        "image",
        "inference",
        "load",
        "many_at_once",
        "model_path",
        "mounts",
        "named_ports",
        "need_mb",
        "node_key",
        "percent",
        "promise",
        "refused_by",
        "tenant_id",
        "thresholds",
        "whole",
    )

    def __init__(self, task: TaskView, snapshot: Snapshot) -> None:
        self.tenant_id = task.tenant_id
        self.filters: tuple[Any, ...] | None = None  # that apply to it, once that was found out
        self.friends: Friends = snapshot.friends_of(task.tenant_id)
        self.thresholds: Thresholds = snapshot.thresholds
        self.inference = task.task_type == TaskType.INFERENCE
        self.cards = task.gpu_required
        self.whole = task.whole_cards
        self.load = load_of(task)
        self.percent: Any = self.load.claim
        self.counted = task.counted
        self.promise: Any = self.load.promise
        self.estimate_mb = 0 if task.memory_mb is None else -(-task.memory_mb // max(1, task.gpu_required))
        self.need_mb: Any = max(1, self.estimate_mb)
        self.gpu_type = task.gpu_type
        self.engine_name = task.engine
        self.engine: Engine | None = get_engine(task.engine)
        self.has_command = task.has_command
        self.engine_percent: Any = self._engine_percent()
        self.image = task.image
        self.model_path = "" if task.engine in _MODEL_IN_IMAGE else task.model_path
        self.mounts = _mounts(task.volumes, self.model_path)
        self.refused_by = task.refused_by
        self.host_network = task.host_network
        self.many_at_once = self.load.many_at_once
        named = tuple(host for _, host in task.ports if host)
        self.named_ports: tuple[int, ...] = named
        self.any_ports = len(task.ports) - len(named)
        by = (task.engine, task.has_command, self.inference)
        self.node_key = (*by, task.tenant_id, bool(task.gpu_required), self.mounts, task.host_network)
        self.form: Hashable = (
            *(self.cards, self.whole, self.engine_percent > 0, self.inference, self.counted, self.any_ports),
            *(named, self.refused_by, self.host_network, self.image, bool(self.model_path)),
        )
        self.card_key = (*by, task.gpu_type, self.whole, self.percent, self.estimate_mb)

    @property
    def base_key(self) -> Hashable:
        """All that filters read but those of facts, and scores but those of the model."""
        return (self.form, self.friends, *_numbers_of(self))

    def _engine_percent(self) -> int:
        if self.engine is None or self.has_command or not self.inference or not self.cards:
            return 0
        default = self.engine.start_percent
        if default is None:
            return 0
        return default if self.whole else self.percent


def several(asks: Sequence[Ask], circles: Sequence[Circle], which: Array) -> Ask:
    """As one that asks in each lane what the one of them does whose number stands there. They are of one
    form, their circles of one word."""
    one = copy(asks[0])
    for (name, kind), values in zip(NUMBERS.items(), zip(*map(_numbers_of, asks), strict=True), strict=True):
        setattr(one, name, np.array(values, kind)[which])
    one.friends = Circle(circles[0].word, np.array([circle.bit for circle in circles], np.int64)[which])
    return one


@lru_cache(maxsize=65_536)
def _mounts(volumes: tuple[str, ...], model_path: str) -> tuple[str, ...]:
    return tuple(mounted_places(list(volumes), model_path))
