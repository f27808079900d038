"""Slows the guessing of join tokens: counts failures per address in the cache (TEN-05's rule for
sign-in, for machines). A token has 256 random bits; without a cache guessing is hopeless all the same,
so a cache that is away lets joins through.

The only thing in a request that may wait for the cache: once for its timeout, and then no request of this
process asks it again for CACHE_RETRY_S.
"""

import hashlib
import logging
import time
from collections.abc import Callable

from django.conf import settings
from django.core.cache import cache

from apps.core.errors import Refusal

log = logging.getLogger("heteroflow.agentlink")
_away_until = 0.0  # by the monotonic clock; the cache did not answer this process lately


def check_guesses(address: str) -> None:
    """Raises Refusal 429 while an address has spent its JOIN_FAILURE_LIMIT."""
    failures = _asked(lambda: cache.get(_key(address), 0))
    if failures is not None and failures >= settings.JOIN_FAILURE_LIMIT:
        raise Refusal("join_guesses_spent", 429, retry_after_s=settings.JOIN_FAILURE_WINDOW_S)


def count_guess(address: str) -> None:
    """Count one failed join; the window begins with the first."""
    key = _key(address)

    def count() -> int:
        cache.add(key, 0, settings.JOIN_FAILURE_WINDOW_S)
        return cache.incr(key)

    _asked(count)


def _key(address: str) -> str:
    return f"join-failures:{hashlib.sha256(address.encode()).hexdigest()[:32]}"


def _asked(question: Callable[[], int]) -> int | None:
    """The cache's answer; None for one that has expired, and while the cache is away."""
    global _away_until
    if time.monotonic() < _away_until:
        return None
    try:
        return question()
    except ValueError:  # it expired between two commands
        return None
    except Exception as error:  # each cache backend raises its own
        _away_until = time.monotonic() + settings.CACHE_RETRY_S
        log.warning("failed joins are not counted now, the cache is away: %s", type(error).__name__)
        return None
