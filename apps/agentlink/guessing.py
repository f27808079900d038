"""Slows the guessing of join tokens: counts failures per address in the cache (TEN-05's rule for
sign-in, for machines). A token has 256 random bits; without a cache guessing is hopeless all the same,
so a cache that is away lets joins through.
"""

import hashlib
import logging

from django.conf import settings
from django.core.cache import cache

from apps.core.errors import Refusal

log = logging.getLogger("heteroflow.agentlink")


def check_guesses(address: str) -> None:
    """Raises Refusal 429 while an address has spent its JOIN_FAILURE_LIMIT."""
    try:
        failures = cache.get(_key(address), 0)
    except Exception as error:  # each cache backend raises its own
        _note(error)
        return
    if failures >= settings.JOIN_FAILURE_LIMIT:
        raise Refusal("join_guesses_spent", 429, retry_after_s=settings.JOIN_FAILURE_WINDOW_S)


def count_guess(address: str) -> None:
    """Count one failed join; the window begins with the first."""
    key = _key(address)
    try:
        cache.add(key, 0, settings.JOIN_FAILURE_WINDOW_S)
        cache.incr(key)
    except ValueError:  # it expired between the two calls
        return
    except Exception as error:
        _note(error)


def _key(address: str) -> str:
    return f"join-failures:{hashlib.sha256(address.encode()).hexdigest()[:32]}"


def _note(error: Exception) -> None:
    log.warning("failed joins are not counted now, the cache is away: %s", type(error).__name__)
