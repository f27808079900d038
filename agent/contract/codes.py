"""Reason codes: why something is so, as a code with parameters.

Owns the codes that cross the wire or rest in rows. Never holds a sentence: the server's edge turns
a code into English or Chinese (`apps/core/texts.py`), so that both stay complete.
"""

from enum import StrEnum

import msgspec


class Code(StrEnum):
    """Every reason that a state, an event, a refusal or a warning can carry."""

    # creation and placing
    CREATED = "created"
    PLACED = "placed"
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    NODE_NOT_ALLOWED = "node_not_allowed"
    NODE_OFFLINE = "node_offline"
    NODE_CORDONED = "node_cordoned"
    DOOR_CLOSED = "door_closed"
    RUNTIME_CANNOT = "runtime_cannot"
    GPU_TYPE_MISMATCH = "gpu_type_mismatch"
    CARDS_SHORT = "cards_short"
    VRAM_SHORT = "vram_short"
    VRAM_UNKNOWN = "vram_unknown"
    PORTS_EXHAUSTED = "ports_exhausted"
    PORT_TAKEN = "port_taken"
    TENANT_SUSPENDED = "tenant_suspended"
    NO_NODE = "no_node"
    COMMITMENT_FULL = "commitment_full"
    RED_LINE = "red_line"
    NODE_BUSY = "node_busy"
    NODE_LOAD_UNKNOWN = "node_load_unknown"
    VOLUME_NOT_THERE = "volume_not_there"
    INFERENCE_CAP = "inference_cap"
    FOREIGN_MEMORY = "foreign_memory"
    ENGINE_MEMORY = "engine_memory"
    GANG_SHORT = "gang_short"
    GPU_TYPE_OFFLINE = "gpu_type_offline"
    PREEMPTED = "preempted"
    ROOM_KEPT = "room_kept"
    # start and run
    CLAIMED = "claimed"
    READY = "ready"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    LOAD_TIMEOUT = "load_timeout"
    PORT_CONFLICT = "port_conflict"
    PORT_MOVED = "port_moved"
    MODEL_NOT_FOUND_ON_NODE = "model_not_found_on_node"
    PATH_NOT_ALLOWED = "path_not_allowed"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    IMAGE_MISSING = "image_missing"
    PULL_FAILED = "pull_failed"
    DISK_SHORT = "disk_short"
    CARDS_UNREACHABLE = "cards_unreachable"
    UNHEALTHY = "unhealthy"
    STALLED = "stalled"
    EXITED = "exited"
    OUT_OF_MEMORY = "out_of_memory"
    CONTAINER_GONE = "container_gone"
    AGENT_RESTARTED = "agent_restarted"
    NODE_LOST = "node_lost"
    NODE_DRAINING = "node_draining"
    NODE_FORCED = "node_forced"
    REPLACEMENT_CREATED = "replacement_created"
    REPLACEMENT_DROPPED = "replacement_dropped"
    NODE_REMOVED = "node_removed"
    INTERNAL = "internal"
    STAGE_LOST = "stage_lost"
    STAGE_GIVEN_UP = "stage_given_up"
    CARD_LOST = "card_lost"
    CARD_BUSY = "card_busy"
    CARD_QUARANTINED = "card_quarantined"
    RUN_TIMEOUT = "run_timeout"
    RETRY = "retry"
    TEMPLATE_NEXT = "template_next"
    TEMPLATES_SPENT = "templates_spent"
    NEXT_NODE = "next_node"
    REFUSED_THERE = "refused_there"
    REFUSED_EVERYWHERE = "refused_everywhere"
    EVICTIONS_CAPPED = "evictions_capped"
    # sleep and wake
    SLEEP_REQUESTED = "sleep_requested"
    IDLE = "idle"
    ASLEEP = "asleep"
    ASLEEP_NO_CONTAINER = "asleep_no_container"
    ASLEEP_NO_PLACE = "asleep_no_place"
    SLEEP_UNCONFIRMED = "sleep_unconfirmed"
    SLEEP_CALL_SKIPPED = "sleep_call_skipped"
    SLEEP_CALL_FAILED = "sleep_call_failed"
    SLEEP_ROUTES_CLOSED = "sleep_routes_closed"
    DRAIN_CUT = "drain_cut"
    STILL_USED = "still_used"
    WAKE_REQUESTED = "wake_requested"
    WAKE_NEW_CONTAINER = "wake_new_container"
    WAKE_NEW_PLACE = "wake_new_place"
    WAKE_NODE_OFFLINE = "wake_node_offline"
    WAKE_CARD_LENT = "wake_card_lent"
    WAKE_FAILED = "wake_failed"
    NODE_SAYS_NOTHING = "node_says_nothing"
    CANARY_FAILED = "canary_failed"
    LOAN_ENDED = "loan_ended"
    # scaling
    SCALED_OUT = "scaled_out"
    SCALED_IN = "scaled_in"
    # leaving
    STOP_REQUESTED = "stop_requested"
    START_REQUESTED = "start_requested"
    DELETE_REQUESTED = "delete_requested"
    STOP_CONFIRMED = "stop_confirmed"
    STOP_UNCONFIRMED = "stop_unconfirmed"
    REBUILD = "rebuild"
    REBUILDS_SPENT = "rebuilds_spent"
    COMPLETED = "completed"
    # files
    FILE_NOT_FOUND = "file_not_found"
    FILE_NOT_REGULAR = "file_not_regular"
    FILE_UNREADABLE = "file_unreadable"
    FILE_CHANGED = "file_changed"
    FILE_QUOTA = "file_quota"
    FILE_NO_ANSWER = "file_no_answer"
    # claims
    CLAIM_LOST = "claim_lost"
    CLAIM_SUPERSEDED = "claim_superseded"
    CLAIM_UNKNOWN = "claim_unknown"
    NOT_THIS_NODES = "not_this_nodes"
    # warnings on a group
    ENDPOINT_WITHOUT_PORT = "endpoint_without_port"
    ROUTE_NOT_CREATED = "route_not_created"
    ENDPOINT_NOT_CREATED = "endpoint_not_created"
    NOT_COUNTED_ON_CARD = "not_counted_on_card"
    ESTIMATE_SKIPPED = "estimate_skipped"
    CLOCK_SKEW = "clock_skew"


class Reason(msgspec.Struct, frozen=True):
    """A code with the values that its sentence needs (numbers with their unit in the name)."""

    code: Code
    params: dict[str, str | int | float | bool | None] = {}


def reason(code: Code, **params: str | int | float | bool | None) -> Reason:
    """Build a Reason; keyword arguments become its parameters."""
    return Reason(code=code, params=params)
