"""Models that operators register for the create form (SVC-06): a plain list, edited in place."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from apps.catalog.models import CatalogModel
from apps.console.admin.base import OperatorAdmin


@admin.register(CatalogModel)
class CatalogModelAdmin(OperatorAdmin):
    """Name, path and image; the create form fills itself from here."""

    list_display = ["name", "path", "image", "engine", "size_mb"]
    list_filter = ["engine"]
    search_fields = ["name", "path", "image", "public_id"]
    readonly_fields = ["public_id", "created_at"]
    fields = ["name", "path", "image", "engine", "size_mb", "public_id", "created_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)
