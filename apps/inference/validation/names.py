"""Names: `name` is for people, `model_name` is what callers send in `model` (SVC-06)."""

from apps.catalog.names import NAME_LIMIT, is_callable_name
from apps.core.bodies import Fields


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
