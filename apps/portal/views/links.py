"""Where one-time links lead (TEN-10). The token stands behind the # of the address: a script of the page
puts it into the form, and no server or proxy ever logs it."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.scopes import PUBLIC
from apps.portal.forms_people import AcceptForm, NewPasswordForm, TokenForm
from apps.portal.pages import page
from apps.tenants import services
from apps.tenants.models import User
from apps.tenants.scope import viewer_of


@page(PUBLIC)
@sensitive_post_parameters("password", "token")
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest) -> HttpResponse:
    """Take an invitation: with a name and a password of one's own, or as who is signed in."""
    user = request.user
    form: Any = (TokenForm if isinstance(user, User) else AcceptForm)(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        try:
            if isinstance(user, User):
                actor = viewer_of(user)
                services.join_by_invitation(actor=actor, user=user, token=given["token"], now=utc_now())
                messages.success(request, _("You are a member now."))
                return redirect("portal:home")
            services.accept_invitation(language=get_language() or "", now=utc_now(), **given)
        except Refusal as refusal:
            form.show(refusal)
        else:
            messages.success(request, _("You are a member now; sign in with your name and password."))
            return redirect("portal:sign_in")
    return render(request, "portal/join.html", {"form": form})


@page(PUBLIC)
@sensitive_post_parameters("password", "token")
@require_http_methods(["GET", "POST"])
def new_password(request: HttpRequest) -> HttpResponse:
    """Set a new password by a link."""
    form = NewPasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.reset_password(now=utc_now(), **form.cleaned_data)
        except Refusal as refusal:
            form.show(refusal)
        else:
            messages.success(request, _("Your new password is set; sign in with it."))
            return redirect("portal:sign_in")
    return render(request, "portal/new_password.html", {"form": form})
