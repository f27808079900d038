"""Encoding of contract messages: JSON by msgspec, and the hash of a desired list."""

import hashlib
from typing import Any, TypeVar

import msgspec

from agent.contract.messages import DesiredTask

M = TypeVar("M")

_encoder = msgspec.json.Encoder(order="deterministic")


def encode(message: Any) -> bytes:
    """Encode one message; key order is fixed so that equal messages are equal bytes."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Decode and check one message.

    Raises msgspec.ValidationError (wrong shape) or msgspec.DecodeError (not JSON).
    """
    return msgspec.json.decode(data, type=kind)


def hash_desired(tasks: list[DesiredTask]) -> str:
    """Hash of a desired list, the same for any order of its tasks (16 hex digits)."""
    ordered = sorted(tasks, key=lambda t: (t.task_id, t.attempt))
    return hashlib.sha256(encode(ordered)).hexdigest()[:16]
