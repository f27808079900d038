"""JSON columns read as text, parsed only where they are looked at: of many rows most hold the same.

Owns that and nothing of what they mean. For reads of many rows; a single row is read as it is.
"""

from functools import lru_cache
from typing import Any

import msgspec
from django.db.models import F, TextField
from django.db.models.functions import Cast


def as_text(*names: str) -> dict[str, Cast]:
    """For `annotate`: each of these JSON fields as NAME_text; None where the column is null."""
    return {f"{name}_text": Cast(F(name), TextField()) for name in names}


@lru_cache(maxsize=4096)
def parsed(text: str | None) -> Any:
    """What such a text says; whoever asks for an equal one gets the same object, so never change it.

    Raises ValueError (msgspec.DecodeError) for what is no JSON.
    """
    return None if text is None else msgspec.json.decode(text)
