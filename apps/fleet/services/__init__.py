"""Writes to machines: joining, heartbeats, operators' changes. Tasks and claims are not its business."""

from apps.fleet.services.cards import release_cards, released_cards
from apps.fleet.services.changes import change_node, cordon, note_duty, set_duty, set_force, uncordon
from apps.fleet.services.heartbeats import HeartbeatOutcome, record_heartbeat
from apps.fleet.services.joining import (
    authenticate,
    create_join_token,
    join_command,
    owner_of_secret,
    redeem_join_token,
)

__all__ = [
    "HeartbeatOutcome",
    "authenticate",
    "change_node",
    "cordon",
    "create_join_token",
    "join_command",
    "note_duty",
    "owner_of_secret",
    "record_heartbeat",
    "redeem_join_token",
    "release_cards",
    "released_cards",
    "set_duty",
    "set_force",
    "uncordon",
]
