"""What the console calls apps and rows, and the theme's own sentences, for both languages.

Owns words only, and giving them to Django's admin. They stand here and not in the models because a label
is the page's, and changing one should need no migration (UI-03).
"""

from typing import Any

from django.apps import apps
from django.utils.translation import gettext_lazy as _

from apps.console.columns import COLUMNS

APPS = {
    "alerts": _("Alerts"),
    "catalog": _("Models"),
    "core": _("Loops"),
    "files": _("Files"),
    "fleet": _("Machines"),
    "routing": _("Gateway"),
    "streams": _("Logs"),
    "tenants": _("People"),
    "usage": _("Usage"),
    "workloads": _("Work"),
}

# one and many
ROWS = {
    "alerts.Alert": (_("alert"), _("alerts")),
    "alerts.Delivery": (_("delivery"), _("deliveries")),
    "alerts.Webhook": (_("webhook"), _("webhooks")),
    "catalog.CatalogModel": (_("model"), _("models")),
    "core.AuditEntry": (_("act"), _("audit trail")),
    "core.Lease": (_("lease"), _("leases")),
    "core.PublishedVersion": (_("published table"), _("published tables")),
    "core.TickRun": (_("last run"), _("last runs")),
    "files.FilePiece": (_("file piece"), _("file pieces")),
    "files.FileRequest": (_("file request"), _("file requests")),
    "fleet.Card": (_("card"), _("cards")),
    "fleet.ModelFile": (_("model on it"), _("models on it")),
    "fleet.JoinToken": (_("join token"), _("join tokens")),
    "fleet.Node": (_("node"), _("nodes")),
    "fleet.Port": (_("port"), _("ports")),
    "routing.ExternalEngine": (_("external engine"), _("external engines")),
    "routing.GatewayLoad": (_("gateway process"), _("gateway processes")),
    "routing.InferenceEndpoint": (_("endpoint"), _("endpoints")),
    "routing.ModelRoute": (_("model route"), _("model routes")),
    "streams.LogChunk": (_("log piece"), _("log pieces")),
    "tenants.ApiKey": (_("API key"), _("API keys")),
    "tenants.Membership": (_("membership"), _("memberships")),
    "tenants.OneTimeLink": (_("one-time link"), _("one-time links")),
    "tenants.Quota": (_("quota"), _("quotas")),
    "tenants.SharedGroup": (_("shared group"), _("shared groups")),
    "tenants.SignedIn": (_("session"), _("sessions")),
    "tenants.Tenant": (_("tenant"), _("tenants")),
    "tenants.User": (_("user"), _("users")),
    "usage.CardTime": (_("card time"), _("card times")),
    "usage.UsageFile": (_("usage journal"), _("usage journals")),
    "usage.UsageHost": (_("usage host"), _("usage hosts")),
    "usage.UsageRecord": (_("usage record"), _("usage records")),
    "usage.UsageTotal": (_("usage sum"), _("usage sums")),
    "workloads.CardClaim": (_("card claim"), _("card claims")),
    "workloads.Claim": (_("claim"), _("claims")),
    "workloads.Event": (_("event"), _("events")),
    "workloads.GroupWarning": (_("warning"), _("warnings")),
    "workloads.Loan": (_("loan of a card"), _("loans of cards")),
    "workloads.Reservation": (_("kept room"), _("kept rooms")),
    "workloads.Task": (_("task"), _("tasks")),
    "workloads.TaskGroup": (_("task group"), _("task groups")),
}

# Sentences of the theme, which has no Chinese of its own: named here so that they are collected.
THEME = (
    _("General"),
    _("Go back"),
    _("Reset filters"),
    _("Select all rows"),
    _("Type to search"),
    _("After you've created a user, you’ll be able to edit more user options."),
    _("Search apps and models..."),
    _("Select record"),
    _("Select action to run"),
    _("scrollable content"),
    _(
        "Raw passwords are not stored, so there is no way to see this user’s password, but you can change "
        'the password using <a href="{}" class="text-primary-600 dark:text-primary-500">this form</a>.'
    ),
)


def apply() -> None:
    """Give every app, model and field its word. Called once, when all apps are loaded."""
    for label, word in APPS.items():
        config: Any = apps.get_app_config(label)
        config.verbose_name = word
    for label, (one, many) in ROWS.items():
        options: Any = apps.get_model(label)._meta
        options.verbose_name, options.verbose_name_plural = one, many
        for field in options.get_fields():
            if field.name in COLUMNS and hasattr(field, "verbose_name"):
                field.verbose_name = COLUMNS[field.name]
