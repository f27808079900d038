"""Cards and ports: what agents reported and placements took, read only."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin
from apps.fleet.models import Card, Port


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
        "busy",
        "temperature",
        "driver_version",
        "compute_capability",
        "mig_capable",
        "mps_capable",
        "present",
    ]

    @display(description=_("used MB"), ordering="sample__vram_used_mb")
    def used_mb(self, row: Card) -> int | None:
        return row.sample.vram_used_mb if hasattr(row, "sample") else None

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
