"""API keys: list, issue, change, rotate, revoke. A key is in the one answer that makes it and nowhere else:
not in the session, not in a message, not in an address (TEN-06)."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from apps.core.clock import utc_now
from apps.core.errors import Invalid, Refusal
from apps.core.scopes import TENANT
from apps.portal.forms_keys import ChangeKeyForm, IssueKeyForm, RotateKeyForm
from apps.portal.pages import is_fragment, page, person
from apps.tenants import selectors, services
from apps.tenants.models import ApiKey, usual_scopes
from apps.tenants.scope import Viewer, pick_tenant, viewer_of


@page(TENANT)
@require_http_methods(["GET", "POST"])
def key_list(request: HttpRequest) -> HttpResponse:
    """The keys that the viewer may see; POST issues one and shows it in this answer only."""
    viewer = viewer_of(request.user)
    form = IssueKeyForm(request.POST or None, viewer=viewer)
    if request.method != "POST" or not form.is_valid():
        return _page(request, viewer, form=form)
    try:
        tenant = pick_tenant(viewer, form.tenant_slug)
        key, plain = services.issue_key(
            actor=viewer,
            tenant=tenant,
            member=person(request),
            name=form.cleaned_data["name"],
            **form.limits(),
            now=utc_now(),
        )
    except Refusal as refusal:
        form.show(refusal)
        return _page(request, viewer, form=form)
    return _page(request, viewer, form=IssueKeyForm(viewer=viewer), key=key, plain=plain)


@page(TENANT)
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, key_id: str) -> HttpResponse:
    """Name and limits of one key; gateways follow within two seconds."""
    viewer = viewer_of(request.user)
    key = _own(viewer, key_id)
    form = ChangeKeyForm(request.POST or None, key=key)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_key(actor=viewer, key=key, changes=form.changes(), now=utc_now())
        except Invalid as refusal:
            form.show(refusal)
        else:
            return redirect("portal:keys")
    return render(request, "portal/key.html", {"section": "keys", "key": key, "form": form})


@page(TENANT)
@require_POST
def rotate(request: HttpRequest, key_id: str) -> HttpResponse:
    """A new key in place of the old one, which ends at once or lives on for the chosen time."""
    viewer = viewer_of(request.user)
    form = RotateKeyForm(request.POST)
    overlap_s = form.cleaned_data["overlap_seconds"] or 0 if form.is_valid() else 0
    key, plain = services.rotate_key(
        actor=viewer, key=_own(viewer, key_id), now=utc_now(), overlap_s=overlap_s
    )
    return _page(request, viewer, form=IssueKeyForm(viewer=viewer), key=key, plain=plain)


@page(TENANT)
@require_POST
def revoke(request: HttpRequest, key_id: str) -> HttpResponse:
    """End a key for good."""
    viewer = viewer_of(request.user)
    services.revoke_key(actor=viewer, key=_own(viewer, key_id), now=utc_now())
    return redirect("portal:keys")


def _own(viewer: Viewer, key_id: str) -> ApiKey:
    return selectors.key_by_id(viewer, key_id)


def _page(
    request: HttpRequest,
    viewer: Viewer,
    *,
    form: IssueKeyForm,
    key: ApiKey | None = None,
    plain: str = "",
) -> HttpResponse:
    shown = {
        "section": "keys",
        "keys": selectors.keys(viewer),
        "form": form,
        "rotation": RotateKeyForm(),
        "now": utc_now(),
        "usual_scopes": usual_scopes(),
        "new_key": key,
        "plain": plain,
        "many_tenants": len(form.choices) > 1,
        "has_tenant": bool(form.choices),
    }
    template = "portal/keys_body.html" if is_fragment(request) else "portal/keys.html"
    return render(request, template, shown)
