"""The line that opens a node's door, and the answers to it (AGENT-16; docs/contract.md).

Owns the words, the key and their check, for both sides. Pure: the moment and the nonce are given by
the caller, who also remembers which nonces were used. Never says to the other side why a line was
refused: there is one refusal for all of them.

    HFD1 open TASK ATTEMPT EPOCH_S NONCE MAC      -> HFD1 ok | HFD1 no
    HFD1 ping - 0 EPOCH_S NONCE MAC               -> HFD1 pong NONCE MAC | HFD1 no
"""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import StrEnum

import msgspec

VERSION = "HFD1"
LONGEST_LINE = 512  # bytes, the end of line with them
SKEW_S = 60  # how far the two clocks may be apart
OK = f"{VERSION} ok\n".encode()
NO = f"{VERSION} no\n".encode()

_KEY_LABEL = b"heteroflow door 1"
_LINE = re.compile(
    rb"(HFD1 (open|ping) ([a-z0-9][a-z0-9-]{0,63}|-) (0|[1-9][0-9]{0,9}) ([1-9][0-9]{0,10}) ([0-9a-f]{32})) "
    rb"([0-9a-f]{64})\n"
)
_TASK = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_NONCE = re.compile(r"[0-9a-f]{32}")


class Purpose(StrEnum):
    OPEN = "open"
    PING = "ping"


class Line(msgspec.Struct, frozen=True):
    """A line that is what it says. `task_id` "-" and `attempt` 0 in a ping."""

    purpose: Purpose
    task_id: str
    attempt: int
    sent_at: int  # epoch seconds of the sender's clock
    nonce: str  # 32 hex digits


class Fault(StrEnum):
    """Why a line was refused: for the door's own counts, never for the other side."""

    MALFORMED = "malformed"
    MAC = "mac"
    SKEW = "skew"


def derive_key(secret_sha256: str) -> bytes:
    """The door's key from what both sides have of the node's secret: the hex digits of its SHA-256.

    Raises ValueError where they are no hex digits.
    """
    return hmac.digest(bytes.fromhex(secret_sha256), _KEY_LABEL, hashlib.sha256)


def build_line(key: bytes, *, task_id: str, attempt: int, now_s: float, nonce: str) -> bytes:
    """The line that asks for one attempt's port. Raises ValueError for what can not stand in a line."""
    if not _TASK.fullmatch(task_id) or not 0 <= attempt < 10**10:
        raise ValueError(f"{task_id!r}, attempt {attempt}: not the name of an attempt")
    return _sign(key, f"{VERSION} {Purpose.OPEN} {task_id} {attempt} {int(now_s)} {_checked(nonce)}")


def build_ping(key: bytes, *, now_s: float, nonce: str) -> bytes:
    """The line that asks whether the door is there. Raises ValueError for a wrong nonce."""
    return _sign(key, f"{VERSION} {Purpose.PING} - 0 {int(now_s)} {_checked(nonce)}")


def check_line(key: bytes, line: bytes, *, now_s: float, skew_s: float = SKEW_S) -> Line | Fault:
    """What a whole line asks for, or why it is refused. `line` ends with its end of line.

    Whether its nonce was used before is not asked here.
    """
    found = _LINE.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if found is None:
        return Fault.MALFORMED
    if not hmac.compare_digest(_mac(key, found[1]), found[7]):
        return Fault.MAC
    sent_at = int(found[5])
    if abs(now_s - sent_at) > skew_s:
        return Fault.SKEW
    return Line(Purpose(found[2].decode()), found[3].decode(), int(found[4]), sent_at, found[6].decode())


def build_pong(key: bytes, nonce: str) -> bytes:
    """The answer to a ping: it proves that the door has the node's key."""
    return _sign(key, f"{VERSION} pong {_checked(nonce)}")


def check_pong(key: bytes, answer: bytes, nonce: str) -> bool:
    """Whether this is the answer to the ping with this nonce."""
    return hmac.compare_digest(answer, build_pong(key, nonce))


def _sign(key: bytes, words: str) -> bytes:
    text = words.encode("ascii")
    return b"%s %s\n" % (text, _mac(key, text))


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def _checked(nonce: str) -> str:
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 32 hex digits")
    return nonce
