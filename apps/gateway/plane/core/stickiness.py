"""Which of several backends a session's calls go to, so that every process says the same (GW-06).

By the highest of one number for each pair of session and backend, so no table is needed: a backend that goes
takes its own sessions along, each to one other, and moves no other session. A replica that starts anew is a
new backend: sessions that have left it don't come back with it.
"""

import functools
import hashlib
import math
from collections.abc import Sequence

import msgspec

_MASK = (1 << 64) - 1


def pick_sticky(session: str, names: Sequence[tuple[str, int]], weights: Sequence[int] | None = None) -> int:
    """The place in `names` that a session belongs to; by weight over many sessions, all 0 is all the same.
    `names` are of backends, each with its attempt, and not empty."""
    mark = _hash(session)
    drawn = [_mix(mark ^ _seed(name)) for name in names]
    if weights is None or not any(weights):
        return drawn.index(max(drawn))
    # Weighted rendezvous: the larger the weight, the more often it has the highest score.
    scores = [
        weight / -math.log(((number >> 12) + 0.5) / 2**52) if weight > 0 else -1.0
        for number, weight in zip(drawn, weights, strict=True)
    ]
    return scores.index(max(scores))


def read_user(raw: bytes | None) -> str:
    """The session that a body's `user` names, as its JSON stands there; "" = none."""
    return str(msgspec.json.decode(raw)) if raw is not None and raw[:1] == b'"' else ""


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


@functools.lru_cache(maxsize=65_536)
def _seed(name: tuple[str, int]) -> int:
    return _hash(f"{name[0]}/{name[1]}")


def _mix(number: int) -> int:
    """Spreads each bit over all of them (the end of MurmurHash3)."""
    number ^= number >> 33
    number = number * 0xFF51AFD7ED558CCD & _MASK
    number ^= number >> 33
    number = number * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33
