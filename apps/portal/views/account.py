"""One's own account (TEN-10): language, time zone, password, and where one is signed in."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from apps.core.clock import utc_now
from apps.core.errors import FieldError, Invalid, Refusal
from apps.core.scopes import SIGNED_IN
from apps.portal.forms_people import PasswordForm, ProfileForm
from apps.portal.pages import page, person
from apps.tenants import presence, selectors, services, sign_in
from apps.tenants.scope import viewer_of


@page(SIGNED_IN)
@require_safe
def account(request: HttpRequest) -> HttpResponse:
    """Profile, password, sessions."""
    return _page(request)


@page(SIGNED_IN)
@require_POST
def save_profile(request: HttpRequest) -> HttpResponse:
    """Save language and time zone."""
    form = ProfileForm(request.POST)
    if form.is_valid():
        user = person(request)
        try:
            services.change_profile(actor=viewer_of(user), user=user, **form.cleaned_data)
        except Refusal as refusal:
            form.show(refusal)
        else:
            presence.speak(request, user)
            messages.success(request, _("Saved."))
            return redirect("portal:account")
    return _page(request, profile=form)


@page(SIGNED_IN)
@sensitive_post_parameters("old_password", "password")
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    """Set another password; this browser stays signed in, everything else ends."""
    form = PasswordForm(request.POST)
    if form.is_valid():
        user, given = person(request), form.cleaned_data
        try:
            if not sign_in.confirm(request, user, given["old_password"]):
                raise Invalid([FieldError("old_password", "wrong_password")])
            services.set_password(
                actor=viewer_of(user),
                user=user,
                password=given["password"],
                verb="change_password",
                keep=_mark(request),
                now=utc_now(),
            )
        except Refusal as refusal:
            form.show(refusal)
            request.axes_locked_out = False  # type: ignore[attr-defined]  # this page tells it
        else:
            update_session_auth_hash(request, user)
            messages.success(request, _("Your password is changed; other sessions have ended."))
            return redirect("portal:account")
    return _page(request, password=form)


@page(SIGNED_IN)
@require_POST
def end_session(request: HttpRequest, session_id: str) -> HttpResponse:
    """End one session."""
    viewer = viewer_of(request.user)
    session = selectors.session_by_id(viewer, session_id)
    services.end_session(actor=viewer, session=session, now=utc_now())
    if session.public_id == _mark(request):
        return redirect("portal:sign_in")
    messages.success(request, _("Ended."))
    return redirect("portal:account")


@page(SIGNED_IN)
@require_POST
def end_others(request: HttpRequest) -> HttpResponse:
    """End every other session of one's own."""
    user = person(request)
    n = services.end_sessions(actor=viewer_of(user), user=user, but=_mark(request), now=utc_now())
    text = ngettext("%(n)s session was ended.", "%(n)s sessions were ended.", n)
    messages.success(request, text % {"n": n})
    return redirect("portal:account")


def _mark(request: HttpRequest) -> str:
    return str(request.session.get(presence.MARK, ""))


def _page(request: HttpRequest, **forms: Any) -> HttpResponse:
    user = person(request)
    profile = {"language": user.language, "time_zone": user.time_zone}
    shown = {
        "section": "account",
        "profile": forms.get("profile") or ProfileForm(initial=profile),
        "password": forms.get("password") or PasswordForm(),
        "sessions": selectors.sessions(viewer_of(user), utc_now()),
        "mark": _mark(request),
    }
    return render(request, "portal/account.html", shown)
