"""Model fields that every app shares: public ids and text encrypted at rest (OPS-08)."""

import json
from typing import Any

from django.db import models

from apps.core import ids, secrets


class PublicIdField(models.CharField):  # type: ignore[type-arg]
    """A unique prefixed id (SVC-01), made at creation: `PublicIdField(kind="group")`."""

    def __init__(self, *args: Any, kind: str = "", **kwargs: Any) -> None:
        self.kind = kind
        kwargs.setdefault("max_length", 40)
        kwargs.setdefault("unique", True)
        kwargs.setdefault("editable", False)
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        kwargs["kind"] = self.kind
        return name, path, args, kwargs

    def get_default(self) -> str:
        return ids.new_id(self.kind)


class EncryptedTextField(models.TextField):  # type: ignore[type-arg]
    """Text that rests encrypted (MultiFernet) and is plain only in memory. Never filter on it.

    Raises SecretUnreadable on loading when no configured key opens it.
    """

    def get_prep_value(self, value: Any) -> Any:
        return secrets.encrypt(value) if value else value

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> str | None:
        return secrets.decrypt(value) if value else value


class EncryptedJSONField(EncryptedTextField):
    """A JSON value that rests encrypted, such as a service's environment with its hub token. Empty
    values are stored like others: never filter on it.

    Raises SecretUnreadable on loading when no configured key opens it.
    """

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else secrets.encrypt(json.dumps(value))

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        return None if value is None else json.loads(secrets.decrypt(value))
