"""Cards, ports and models, read only: what agents reported and placements took, also as rows of a node."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin, ReadOnlyRows, ago
from apps.console.cluster import build_map
from apps.core.clock import utc_now
from apps.fleet.models import Card, ModelFile, Port


def _foreign(row: Card) -> str | None:
    sample = getattr(row, "sample", None)
    if sample is None or sample.foreign_mb is None:
        return None
    return f"{sample.foreign_mb} MB {sample.foreign}".strip()


class CardRows(ReadOnlyRows):
    model = Card
    fields = [
        "index",
        "model",
        "vendor",
        "vram_total_mb",
        "used_mb",
        "foreign",
        "link_group",
        "pcie_root",
        "present",
        "quarantine",
    ]
    readonly_fields = fields

    @display(description=_("used MB"))
    def used_mb(self, row: Card) -> int | None:
        return row.sample.vram_used_mb if hasattr(row, "sample") else None

    @display(description=_("of it foreign"))
    def foreign(self, row: Card) -> str | None:
        return _foreign(row)

    @display(description=_("quarantine"))
    def quarantine(self, row: Card) -> str | None:
        if row.quarantined_at is None:
            return None
        held = ", ".join(f"{one['pid']}: {one['used_mb']} MB ({one['task_id']})" for one in row.held_by)
        return f"{ago(row.quarantined_at, utc_now())}: {held}"


class ModelRows(ReadOnlyRows):
    model = ModelFile
    fields = ["path"]
    readonly_fields = fields


@admin.register(Card)
class CardAdmin(ReadOnlyAdmin):
    """What agents report; an empty measured value means that the card did not answer."""

    list_display = ["node", "index", "model", "vendor", "vram_total_mb", "used_mb", "busy", "present"]
    list_filter = ["vendor", "model", "present"]
    search_fields = ["uuid", "model", "node__name"]
    list_select_related = ["node", "sample"]
    fields = [
        "node",
        "index",
        "uuid",
        "vendor",
        "model",
        "vram_total_mb",
        "used_mb",
        "foreign",
        "busy",
        "temperature",
        "link_group",
        "pcie_root",
        "driver_version",
        "compute_capability",
        "mig_capable",
        "mps_capable",
        "present",
    ]

    def get_urls(self) -> list[Any]:
        return [path("map/", self.guarded(self.map), name="fleet_card_map"), *super().get_urls()]

    def map(self, request: HttpRequest) -> HttpResponse:
        """The cluster by card."""
        asked = request.GET
        found = build_map(asked.get("pool", ""), asked.get("model", ""), asked.get("page"), utc_now())
        return self.show(request, "console/map.html", _("Cluster map"), opts=None, map=found)

    @display(description=_("used MB"), ordering="sample__vram_used_mb")
    def used_mb(self, row: Card) -> int | None:
        return row.sample.vram_used_mb if hasattr(row, "sample") else None

    @display(description=_("of it foreign"))
    def foreign(self, row: Card) -> str | None:
        return _foreign(row)

    @display(description=_("busy %"))
    def busy(self, row: Card) -> int | None:
        return row.sample.utilization_percent if hasattr(row, "sample") else None

    @display(description=_("temperature °C"))
    def temperature(self, row: Card) -> int | None:
        return row.sample.temperature_c if hasattr(row, "sample") else None


@admin.register(Port)
class PortAdmin(ReadOnlyAdmin):
    """A port is freed when its agent confirms the exit, never here (SVC-12)."""

    list_display = ["node", "number", "container_port", "owner", "attempt"]
    list_filter = ["node"]
    search_fields = ["owner", "number", "node__name"]
    list_select_related = ["node"]
