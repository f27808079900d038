"""What a task waits for, until when, and what people can do about it (SVC-14). Pure.

Owns the two tables from states and reasons to codes; `apps/core/texts_explain.py` has their sentences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from agent.contract.codes import Code
from agent.contract.states import Desired, Phase, State, TaskType
from apps.workloads.policy.rebuilding import GIVEN_UP


@dataclass(frozen=True)
class Standing:
    """What is known of a task. `deadline_at` is what its present wait, or its run, may take at most;
    `not_before` when it is looked at again after a failure, `kept_until` until when room is kept for it."""

    state: State
    phase: str = ""
    desired: str = Desired.RUN
    task_type: str = TaskType.INFERENCE
    reason_code: str = ""
    deadline_at: datetime | None = None
    not_before: datetime | None = None
    suspended: bool = False
    kept_until: datetime | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it moves on without anybody's word, though it looks at rest: rebuilt, or woken when its
        node or card allows it."""
        if self.state == State.FAILED:
            rebuilt = self.task_type == TaskType.INFERENCE and self.reason_code not in GIVEN_UP
            return rebuilt and self.desired == Desired.RUN
        return self.state == State.SLEEPING and self.desired == Desired.RUN


@dataclass(frozen=True)
class Awaited:
    """`until` None = no moment is set: it may take as long as it takes."""

    code: str
    until: datetime | None = None


def find_awaited(task: Standing, now: datetime) -> Awaited | None:
    """What has to happen before the task moves on; None where nothing has to."""
    match task.state:
        case State.PENDING:
            return _of_pending(task, now)
        case State.SCHEDULING | State.WAKING:
            return Awaited(_of_start(task.phase, task.state), task.deadline_at)
        case State.RUNNING if task.phase not in ("", Phase.READY):
            return Awaited("await_ready_again", task.deadline_at)
        case State.RUNNING if task.task_type != TaskType.INFERENCE:
            return Awaited("await_end", task.deadline_at)
        case State.DRAINING if task.desired == Desired.STOP:
            return Awaited("await_drained_then_stop", task.deadline_at)
        case State.DRAINING:
            return Awaited("await_drained_then_sleep", task.deadline_at)
        case State.SLEEPING if task.goes_on:
            return Awaited("await_wake_possible")
        case State.SLEEPING:
            return Awaited("await_wake_call")
        case State.STOPPING:
            return Awaited("await_gone", task.deadline_at)
        case State.FAILED if task.goes_on:
            return Awaited("await_rebuild", task.not_before)
    return None


def _of_pending(task: Standing, now: datetime) -> Awaited:
    if task.suspended:
        return Awaited("await_resumed")
    if task.not_before is not None and task.not_before > now:
        return Awaited("await_retry", task.not_before)
    if task.kept_until is not None:
        return Awaited("await_room", task.kept_until)
    return Awaited("await_place")


def _of_start(phase: str, state: State) -> str:
    if phase == Phase.PULLING:
        return "await_image"
    if phase in (Phase.NONE, Phase.PLACED) and state == State.SCHEDULING:
        return "await_claim"
    return "await_ready"


# What helps against a reason. A reason that is missing here has nothing that people could do.
ADVICE: Mapping[str, str] = {
    Code.NO_NODE: "try_join_node",
    Code.NODE_OFFLINE: "try_start_agent",
    Code.NODE_LOST: "try_start_agent",
    Code.NODE_CORDONED: "try_uncordon",
    Code.DOOR_CLOSED: "try_open_door",
    Code.RUNTIME_CANNOT: "try_other_engine",
    Code.ENGINE_UNAVAILABLE: "try_other_engine",
    Code.GPU_TYPE_MISMATCH: "try_other_card",
    Code.CARDS_SHORT: "try_fewer_cards",
    Code.VRAM_SHORT: "try_less_memory",
    Code.COMMITMENT_FULL: "try_lower_promise",
    Code.ENGINE_MEMORY: "try_lower_promise",
    Code.RED_LINE: "try_free_cards",
    Code.NODE_BUSY: "try_less_load",
    Code.NODE_LOAD_UNKNOWN: "try_look_at_node",
    Code.VOLUME_NOT_THERE: "try_other_path",
    Code.INFERENCE_CAP: "try_fewer_services",
    Code.FOREIGN_MEMORY: "try_end_foreign",
    Code.GANG_SHORT: "try_fewer_parts",
    Code.GPU_TYPE_OFFLINE: "try_start_agent",
    Code.VRAM_UNKNOWN: "try_look_at_driver",
    Code.CARDS_UNREACHABLE: "try_look_at_driver",
    Code.CARD_LOST: "try_look_at_driver",
    Code.CARD_BUSY: "try_free_card",
    Code.CARD_QUARANTINED: "try_free_card",
    Code.PORTS_EXHAUSTED: "try_other_port",
    Code.PORT_TAKEN: "try_other_port",
    Code.PORT_CONFLICT: "try_other_port",
    Code.TENANT_SUSPENDED: "try_ask_operator",
    Code.IMAGE_MISSING: "try_other_image",
    Code.PULL_FAILED: "try_other_image",
    Code.DISK_SHORT: "try_free_disk",
    Code.MODEL_NOT_FOUND_ON_NODE: "try_other_path",
    Code.PATH_NOT_ALLOWED: "try_other_path",
    Code.OUT_OF_MEMORY: "try_less_memory",
    Code.START_TIMEOUT: "try_look_at_node",
    Code.LOAD_TIMEOUT: "try_longer_start",
    Code.START_FAILED: "try_read_log",
    Code.EXITED: "try_read_log",
    Code.UNHEALTHY: "try_read_log",
    Code.STALLED: "try_read_log",
    Code.WAKE_FAILED: "try_read_log",
    Code.CANARY_FAILED: "try_read_log",
    Code.TEMPLATES_SPENT: "try_read_log",
    Code.RUN_TIMEOUT: "try_longer_run",
    Code.WAKE_CARD_LENT: "try_wait_for_loan",
    Code.STOP_UNCONFIRMED: "try_look_at_node",
}
_BY_STATE: Mapping[State, str] = {
    State.SLEEPING: "try_wake",
    State.STOPPED: "try_start",
    State.FAILED: "try_start",
}


def find_advice(task: Standing, codes: Iterable[str]) -> list[str]:
    """What to do, the most telling reason first, each once. `codes` are the reasons known of the task: its
    own, its last error's, those of the nodes that refuse it."""
    found = [ADVICE[code] for code in codes if code in ADVICE]
    at_rest = _BY_STATE.get(task.state)
    if at_rest is not None and not task.goes_on:
        found.append(at_rest)
    return list(dict.fromkeys(found))
