"""Names: `name` is for people, `model_name` is what callers send in `model` (SVC-06)."""

import unicodedata

from apps.core.bodies import Fields

NAME_LIMIT = 200
_MARKS = "._:/-"


def is_callable_name(text: str) -> bool:
    """Whether callers can send it as `model`: letters and digits of any script, and . _ : / - inside."""
    return bool(text) and text[0].isalnum() and all(_fits(c) for c in text)


def _fits(character: str) -> bool:
    return character.isalnum() or character in _MARKS or unicodedata.category(character).startswith("M")


def read_names(fields: Fields) -> tuple[str, str]:
    """(name, model_name); without model_name the name stands in for it and must be callable too."""
    name = fields.text("name", limit=NAME_LIMIT, required=True)
    model_name = fields.text("model_name", limit=NAME_LIMIT)
    if model_name:
        if not is_callable_name(model_name):
            fields.refuse("model_name", "bad_name", model_name)
        return name, model_name
    if fields.body.get("model_name") in (None, "") and name and not is_callable_name(name):
        fields.refuse("model_name", "model_name_from_name", name)
    return name, name
