"""Sign in and out. Guessing is slowed by axes before a password is looked at (TEN-05)."""

from django.contrib.auth import login, logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from apps.core.errors import Refusal
from apps.core.scopes import PUBLIC
from apps.portal.forms import SignInForm
from apps.portal.pages import page
from apps.tenants import sign_in as tenants


@page(PUBLIC)
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """The sign-in page; goes on to `next` where that is an address of ours."""
    target = _target(request)
    if request.user.is_authenticated:
        return redirect(target)
    form = SignInForm(request.POST or None)
    status = 200
    if request.method == "POST" and form.is_valid():
        try:
            user = tenants.verify(request, **form.cleaned_data)
        except Refusal as refusal:
            form.show(refusal)
            status = refusal.status
            # The page tells it; without this axes would put a bare sentence in its place.
            request.axes_locked_out = False  # type: ignore[attr-defined]
        else:
            login(request, user)
            return redirect(target)
    return render(request, "portal/sign_in.html", {"form": form, "next": target}, status=status)


@page(PUBLIC)
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("portal:sign_in")


def _target(request: HttpRequest) -> str:
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if ours else resolve_url("portal:services")
