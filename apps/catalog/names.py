"""Names that callers send in `model` (SVC-06). Owns the rule of their characters."""

import unicodedata

NAME_LIMIT = 200
_MARKS = "._:/-"


def is_callable_name(text: str) -> bool:
    """Whether callers can send it as `model`: letters and digits of any script, and . _ : / - inside."""
    return bool(text) and text[0].isalnum() and all(_fits(c) for c in text)


def _fits(character: str) -> bool:
    return character.isalnum() or character in _MARKS or unicodedata.category(character).startswith("M")
