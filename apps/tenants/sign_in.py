"""Sign-in (TEN-05): a name and a password become a person, slowly for those who guess.

Owns the one call to the authentication backends, JWT issuing and refreshing, and the answer of a
lock-out. An unknown name, a wrong password and an inactive account are one answer, and take as long.
"""

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest, HttpResponse
from rest_framework_simplejwt.exceptions import TokenError
from rest_framework_simplejwt.settings import api_settings
from rest_framework_simplejwt.tokens import RefreshToken
from rest_framework_simplejwt.utils import get_md5_hash_password

from apps.core import texts
from apps.core.errors import Refusal
from apps.core.problems import problem_response
from apps.tenants.models import User

LONGEST_NAME = 150


def verify(request: HttpRequest, username: str, password: str) -> User:
    """The active person whom name and password match.

    Raises Refusal 401 `sign_in_failed`, 429 `sign_in_locked` once too many attempts failed.
    """
    if len(username) > LONGEST_NAME:  # nobody's; and too long for the row that counts the failure
        raise Refusal("sign_in_failed", 401)
    user = authenticate(request, username=username, password=password)
    if isinstance(user, User):
        return user
    if getattr(request, "axes_locked_out", False):
        raise locked()
    raise Refusal("sign_in_failed", 401)


def issue_tokens(request: HttpRequest, user: User) -> dict[str, str]:
    """An access and a refresh token of a person who has just proved who they are; forgives the
    failures before, as a session does."""
    user_logged_in.send(sender=User, request=request, user=user)
    refresh = RefreshToken.for_user(user)
    return {"access": str(refresh.access_token), "refresh": str(refresh)}


def refresh_access(refresh_token: str) -> dict[str, str]:
    """A new access token. Raises Refusal 401 `not_signed_in` for a token that is not valid any more,
    or whose person is gone, inactive, or has another password since."""
    try:
        refresh = RefreshToken(refresh_token)  # type: ignore[arg-type]
    except TokenError:
        raise Refusal("not_signed_in", 401) from None
    person = refresh.payload.get(api_settings.USER_ID_CLAIM)
    user = User.objects.filter(public_id=person, is_active=True).first()
    proof = refresh.payload.get(api_settings.REVOKE_TOKEN_CLAIM)
    if user is None or proof != get_md5_hash_password(user.password):
        raise Refusal("not_signed_in", 401)
    return {"access": str(refresh.access_token)}


def locked() -> Refusal:
    """The refusal while locked out, with the longest wait that may be left."""
    return Refusal("sign_in_locked", 429, retry_after_s=int(settings.AXES_COOLOFF_TIME.total_seconds()))


def lockout_response(request: HttpRequest, response: object = None, credentials: Any = None) -> HttpResponse:
    """Axes' hook: what answers a locked-out attempt, whichever form it came by."""
    refusal = locked()
    if request.path.startswith("/api/"):
        answer: HttpResponse = problem_response(refusal)
    else:
        sentence = texts.say(refusal.code, refusal.params)
        answer = HttpResponse(sentence, status=refusal.status, content_type="text/plain; charset=utf-8")
    answer["Retry-After"] = str(refusal.params["retry_after_s"])
    return answer
