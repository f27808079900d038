"""Registering models by hand, for the create form to choose from (SVC-06). Operators only."""

from typing import Any

from django.db import IntegrityError, transaction

from agent.engines.catalog import ENGINE_NAMES
from apps.catalog.images import read_image
from apps.catalog.models import CatalogModel
from apps.catalog.names import NAME_LIMIT, is_callable_name
from apps.core import audit
from apps.core.bodies import Fields
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.tenants.scope import Viewer


def create_model(*, actor: Viewer, body: dict[str, Any]) -> CatalogModel:
    """A model of the catalog. Raises Forbidden for others than operators, Invalid, Conflict
    `name_taken`."""
    if not actor.is_operator:
        raise Forbidden
    fields = _read(body)
    try:
        with transaction.atomic():
            model = CatalogModel.objects.create(**fields)
            audit.note(
                actor,
                "create_model",
                kind="model",
                public_id=model.public_id,
                name=model.name,
                after=fields,
            )
            return model
    except IntegrityError:
        name = fields["name"]
        raise Conflict("name_taken", errors=[FieldError("name", "name_taken", name)], value=name) from None


def _read(body: dict[str, Any]) -> dict[str, Any]:
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    name = fields.text("name", limit=NAME_LIMIT, required=True)
    found = {
        "name": name,
        "path": fields.text("path", limit=1000, required=True),
        "image": read_image(fields),
        "engine": fields.choice("engine", ENGINE_NAMES),
        "size_mb": fields.integer("size_mb", 1, 100_000_000),
    }
    if name and not is_callable_name(name):
        fields.refuse("name", "bad_name", name)
    fields.close()
    if errors:
        raise Invalid(errors)
    return found
