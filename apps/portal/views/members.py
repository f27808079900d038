"""The people of one's tenants, for owners and admins (TEN-10). A link is in the one answer that makes it."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.core.clock import utc_now
from apps.core.errors import Forbidden, Refusal
from apps.core.scopes import TENANT
from apps.portal.forms_people import InviteForm
from apps.portal.pages import page
from apps.tenants import mailing, selectors, services
from apps.tenants.models import Membership, OneTimeLink, Role, Tenant
from apps.tenants.scope import Viewer, viewer_of


@page(TENANT)
@require_http_methods(["GET", "POST"])
def member_list(request: HttpRequest) -> HttpResponse:
    """Members and open invitations; POST invites."""
    viewer = viewer_of(request.user)
    tenant = _tenant(request, viewer)
    form = InviteForm(request.POST or None)
    if request.method != "POST" or not form.is_valid():
        return _page(request, viewer, tenant, form=form)
    try:
        made = services.invite(actor=viewer, tenant=tenant, now=utc_now(), **form.cleaned_data)
    except Refusal as refusal:
        form.show(refusal)
        return _page(request, viewer, tenant, form=form)
    return _page(request, viewer, tenant, form=InviteForm(), made=made)


@page(TENANT)
@require_POST
def change_role(request: HttpRequest, user_id: str) -> HttpResponse:
    """Give a member another role."""
    viewer, membership = _membership(request, user_id)
    role = request.POST.get("role", "")
    services.change_role(actor=viewer, membership=membership, role=role, now=utc_now())
    messages.success(request, _("Saved."))
    return _back(membership.tenant)


@page(TENANT)
@require_POST
def remove(request: HttpRequest, user_id: str) -> HttpResponse:
    """End a membership; the person's keys of the tenant end with it."""
    viewer, membership = _membership(request, user_id)
    services.remove_member(actor=viewer, membership=membership, now=utc_now())
    messages.success(request, _("%(name)s is no member any more.") % {"name": membership.user})
    if membership.user_id == viewer.user_id and not viewer.is_operator:
        return redirect("portal:home")
    return _back(membership.tenant)


@page(TENANT)
@require_POST
def offer_reset(request: HttpRequest, user_id: str) -> HttpResponse:
    """A link by which a member sets a new password."""
    viewer, membership = _membership(request, user_id)
    made = services.offer_reset(actor=viewer, user=membership.user, now=utc_now())
    return _page(request, viewer, membership.tenant, form=InviteForm(), made=made)


@page(TENANT)
@require_POST
def withdraw(request: HttpRequest, link_id: str) -> HttpResponse:
    """Withdraw an invitation."""
    viewer, now = viewer_of(request.user), utc_now()
    link = selectors.invitation_by_id(viewer, link_id, now)
    services.withdraw_link(actor=viewer, link=link, now=now)
    messages.success(request, _("The link is not valid any more."))
    return _back(link.tenant)


def _tenant(request: HttpRequest, viewer: Viewer) -> Tenant:
    managed = selectors.managed_tenants(viewer)
    wanted = request.GET.get("tenant", "")
    found = managed.filter(slug=wanted).first() if wanted and wanted.isprintable() else managed.first()
    if found is None:
        raise Forbidden
    return found


def _membership(request: HttpRequest, user_id: str) -> tuple[Viewer, Membership]:
    viewer = viewer_of(request.user)
    return viewer, selectors.managed_membership(viewer, user_id, request.POST.get("tenant", ""))


def _back(tenant: Tenant | None) -> HttpResponse:
    query = f"?tenant={tenant.slug}" if tenant else ""
    return redirect(reverse("portal:members") + query)


def _page(
    request: HttpRequest,
    viewer: Viewer,
    tenant: Tenant,
    *,
    form: InviteForm,
    made: tuple[OneTimeLink, str] | None = None,
) -> HttpResponse:
    shown: dict[str, Any] = {
        "section": "members",
        "tenant": tenant,
        "tenants": selectors.managed_tenants(viewer),
        "members": selectors.members(viewer, tenant),
        "invitations": services.open_invitations(utc_now()).filter(tenant=tenant),
        "roles": Role.choices,
        "form": form,
    }
    if made is not None:
        link, plain = made
        address = services.link_address(link.purpose, plain)
        shown |= {"link": link, "address": address, "mailed": mailing.send_link(link, address)}
    return render(request, "portal/members.html", shown)
