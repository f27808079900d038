"""The id of the request that is being answered, for log lines and for what is asked on its behalf.

Owns the variable and which ids of callers are fit to be carried on. Imports no Django: the gateway stands
before it.
"""

import os
import re
from contextvars import ContextVar

from apps.core.masking import mask

request_id: ContextVar[str] = ContextVar("request_id", default="-")
_FIT = re.compile(r"[A-Za-z0-9._-]{8,40}")


def carry_on(offered: str) -> str:
    """A fresh id, which no two requests share; it begins with the caller's own where that is harmless, so
    that one search finds a request in the logs of all parts. At most 64 characters."""
    if offered and _FIT.fullmatch(offered) and mask(offered) == offered:
        return f"{offered}.{_draw()[:16]}"
    return f"req-{_draw()}"


_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)


def _draw() -> str:
    """32 random hex digits. The kernel is asked for many at a time."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(16 * 64).hex()
        _drawn.extend(digits[at : at + 32] for at in range(32, len(digits), 32))
        return digits[:32]
