"""What every portal page has in common: who may open it, its security headers, readable refusals.

Owns the sign-in check, the content policy and how a Refusal becomes a page. Decides nothing about rows:
those come from scoped selectors (TEN-04).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.utils.cache import patch_cache_control

from apps.core import texts
from apps.core.errors import Refusal
from apps.core.scopes import PUBLIC, scope
from apps.tenants.models import User

View = Callable[..., HttpResponse]

SIGN_IN = "portal:sign_in"


def page(scope_name: str) -> Callable[[View], View]:
    """Make a view a portal page: signed in unless public, refusals as pages, strict headers."""

    def wrap(view: View) -> View:
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if scope_name != PUBLIC and not request.user.is_authenticated:
                return guard(request, _ask_to_sign_in(request))
            try:
                response = view(request, *args, **kwargs)
            except Refusal as refusal:
                response = refused(request, refusal)
            return guard(request, response)

        return scope(scope_name)(inner)

    return wrap


def refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """A refusal as a page in the reader's language, with the refusal's own status."""
    sentence = texts.say(refusal.code, refusal.params)
    shown = {"sentence": sentence, "status": refusal.status}
    return render(request, "portal/refused.html", shown, status=refusal.status)


def guard(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Only our own files may run or load, nothing is kept by caches. Websockets are named by host, as
    older browsers don't take 'self' for them."""
    host = request.get_host()
    response["Content-Security-Policy"] = (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:;"
        f" connect-src 'self' ws://{host} wss://{host};"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    patch_cache_control(response, no_store=True, private=True)
    return response


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for a part of a page that is already open."""
    return request.headers.get("HX-Request") == "true"


def person(request: HttpRequest) -> User:
    """Who is signed in; for views of signed-in people only."""
    assert isinstance(request.user, User)
    return request.user


def _ask_to_sign_in(request: HttpRequest) -> HttpResponse:
    if not is_fragment(request):
        return redirect_to_login(request.get_full_path(), SIGN_IN)
    # A polling page whose session ended goes to the sign-in page as a whole, then back to itself.
    back = urlsplit(request.headers.get("HX-Current-URL", "")).path or "/"
    answer = HttpResponse(status=401)
    answer["HX-Redirect"] = redirect_to_login(back, resolve_url(SIGN_IN))["Location"]
    return answer
