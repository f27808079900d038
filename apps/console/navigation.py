"""The console's sidebar and colours: what unfold's settings take. No permission is decided here."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

OPERATORS = "apps.console.dashboard.only_operators"


# Pages of our own that stand beside the lists whose addresses theirs begin with.
OWN_PAGES = [
    reverse_lazy("admin:workloads_task_queue"),
    reverse_lazy("admin:fleet_card_map"),
    reverse_lazy("admin:usage_usagetotal_overview"),
    reverse_lazy("admin:routing_modelroute_test"),
    reverse_lazy("admin:routing_gatewayload_backends"),
]


def _stands_on(link: Any) -> Callable[[HttpRequest], bool]:
    def look(request: HttpRequest) -> bool:
        own = [page for page in OWN_PAGES if request.path == str(page)]
        return request.path == str(link) if own else request.path.startswith(str(link))

    return look


def _item(title: Any, icon: str, model: str, page: str = "changelist") -> dict[str, Any]:
    link = reverse_lazy(f"admin:{model}_{page}")
    return {"title": title, "icon": icon, "link": link, "permission": OPERATORS, "active": _stands_on(link)}


SIDEBAR = {
    "show_search": True,
    "show_all_applications": False,
    "navigation": [
        {
            "items": [
                {"title": _("Overview"), "icon": "monitoring", "link": reverse_lazy("admin:index")},
            ],
        },
        {
            "title": _("Work"),
            "separator": True,
            "items": [
                _item(_("Queue"), "hourglass_top", "workloads_task", "queue"),
                _item(_("Task groups"), "deployed_code", "workloads_taskgroup"),
                _item(_("Tasks"), "memory", "workloads_task"),
                _item(_("Events"), "history", "workloads_event"),
                _item(_("Claims"), "handshake", "workloads_claim"),
                _item(_("Loans"), "swap_horiz", "workloads_loan"),
                _item(_("Kept room"), "event_seat", "workloads_reservation"),
                _item(_("Warnings"), "warning", "workloads_groupwarning"),
                _item(_("File requests"), "folder_open", "files_filerequest"),
            ],
        },
        {
            "title": _("Machines"),
            "separator": True,
            "items": [
                _item(_("Cluster map"), "grid_view", "fleet_card", "map"),
                _item(_("Nodes"), "dns", "fleet_node"),
                _item(_("Cards"), "developer_board", "fleet_card"),
                _item(_("Ports"), "lan", "fleet_port"),
                _item(_("Join tokens"), "add_link", "fleet_jointoken"),
            ],
        },
        {
            "title": _("Gateway"),
            "separator": True,
            "items": [
                _item(_("Model routes"), "alt_route", "routing_modelroute"),
                _item(_("External engines"), "public", "routing_externalengine"),
                _item(_("Route test"), "conversion_path", "routing_modelroute", "test"),
                _item(_("Backends"), "network_node", "routing_gatewayload", "backends"),
                _item(_("Endpoints"), "hub", "routing_inferenceendpoint"),
                _item(_("API keys"), "key", "tenants_apikey"),
                _item(_("Gateway processes"), "speed", "routing_gatewayload"),
                _item(_("Usage"), "bar_chart", "usage_usagetotal", "overview"),
                _item(_("Usage sums"), "functions", "usage_usagetotal"),
                _item(_("Usage records"), "receipt_long", "usage_usagerecord"),
                _item(_("Card time"), "timelapse", "usage_cardtime"),
                _item(_("Usage journals"), "draft", "usage_usagefile"),
                _item(_("Usage hosts"), "dns", "usage_usagehost"),
                _item(_("Models"), "inventory_2", "catalog_catalogmodel"),
            ],
        },
        {
            "title": _("People"),
            "separator": True,
            "items": [
                _item(_("Tenants"), "domain", "tenants_tenant"),
                _item(_("Quotas"), "speed", "tenants_quota"),
                _item(_("Memberships"), "badge", "tenants_membership"),
                _item(_("Shared groups"), "share", "tenants_sharedgroup"),
                _item(_("Users"), "group", "tenants_user"),
                _item(_("Sessions"), "devices", "tenants_signedin"),
                _item(_("One-time links"), "link", "tenants_onetimelink"),
                _item(_("Audit trail"), "fact_check", "core_auditentry"),
            ],
        },
        {
            "title": _("Loops"),
            "separator": True,
            "items": [
                _item(_("Alerts"), "notifications", "alerts_alert"),
                _item(_("Webhooks"), "webhook", "alerts_webhook"),
                _item(_("Deliveries"), "outgoing_mail", "alerts_delivery"),
                _item(_("Last runs"), "sync", "core_tickrun"),
                _item(_("Leases"), "lock_clock", "core_lease"),
                _item(_("Published tables"), "published_with_changes", "core_publishedversion"),
                _item(_("Log pieces"), "article", "streams_logchunk"),
            ],
        },
    ],
}

# The portal's accent, so that both halves look like one product.
COLORS = {
    "primary": {
        "50": "oklch(98% 0.013 190)",
        "100": "oklch(95% 0.03 189)",
        "200": "oklch(90% 0.06 188)",
        "300": "oklch(83% 0.09 187)",
        "400": "oklch(74% 0.105 187)",
        "500": "oklch(62% 0.1 188)",
        "600": "oklch(49% 0.083 190)",
        "700": "oklch(42% 0.07 191)",
        "800": "oklch(36% 0.058 192)",
        "900": "oklch(31% 0.047 193)",
        "950": "oklch(22% 0.035 195)",
    },
}
