"""Sign-in (TEN-05): a name and a password become a person, slowly for those who guess.

Owns the one call to the authentication backends, JWT issuing and refreshing, the answer of a lock-out, and
that each of these stands in the audit trail. An unknown name, a wrong password and an inactive account are
one answer, and take as long.
"""

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.signals import user_logged_in
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from rest_framework_simplejwt.exceptions import TokenError
from rest_framework_simplejwt.settings import api_settings
from rest_framework_simplejwt.tokens import RefreshToken
from rest_framework_simplejwt.utils import get_md5_hash_password

from apps.core import audit, texts
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.models import AuditEntry
from apps.core.problems import problem_response
from apps.tenants import presence
from apps.tenants.models import SignInWay, User
from apps.tenants.scope import viewer_of

LONGEST_NAME = 150


def verify(request: HttpRequest, username: str, password: str) -> User:
    """The active person whom name and password match.

    Raises Refusal 401 `sign_in_failed`, 429 `sign_in_locked` once too many attempts failed.
    """
    if len(username) > LONGEST_NAME:  # nobody's; and too long for the row that counts the failure
        raise Refusal("sign_in_failed", 401)
    user = authenticate(request, username=username, password=password)
    if isinstance(user, User):
        _note(viewer_of(user), "sign_in", user.public_id, username, request)
        return user
    guesser = audit.Someone(username)
    if getattr(request, "axes_locked_out", False):
        if not _is_noted(username, request):
            _note(guesser, "lock_sign_in", "", username, request)
        raise locked()
    _note(guesser, "fail_sign_in", "", username, request)
    raise Refusal("sign_in_failed", 401)


def confirm(request: HttpRequest, user: User, password: str) -> bool:
    """Whether a signed-in person knows their password; guessing is slowed as at the door.

    Raises Refusal 429 `sign_in_locked`.
    """
    found = authenticate(request, username=user.get_username(), password=password)
    if found is None and getattr(request, "axes_locked_out", False):
        raise locked()
    return isinstance(found, User) and found.pk == user.pk


def issue_tokens(request: HttpRequest, user: User) -> dict[str, str]:
    """An access and a refresh token of a person who has just proved who they are; forgives the
    failures before, as a session does."""
    user_logged_in.send(sender=User, request=request, user=user)
    refresh = _mint(user, presence.whence(request))
    return {"access": str(refresh.access_token), "refresh": str(refresh)}


def access_for(user: User, *, agent: str) -> str:
    """An access token for a program of ours that runs beside the server; listed and ended as others."""
    return str(_mint(user, {"agent": agent}).access_token)


def _mint(user: User, whence: dict[str, str]) -> RefreshToken:
    refresh: RefreshToken = RefreshToken.for_user(user)
    refresh[presence.MARK] = presence.open_row(user, SignInWay.API, utc_now(), **whence).public_id
    return refresh


def _note(actor: audit.Actor, verb: str, public_id: str, name: str, request: HttpRequest) -> None:
    with transaction.atomic():
        audit.note(actor, verb, kind="user", public_id=public_id, name=name, after={"path": request.path})


def _is_noted(username: str, request: HttpRequest) -> bool:
    """Whether this lock-out stands in the trail already: one row, however often the door is tried."""
    since = utc_now() - settings.AXES_COOLOFF_TIME
    address = (request.META.get("REMOTE_ADDR") or "")[:45]
    rows = AuditEntry.objects.filter(at__gt=since, verb="lock_sign_in", address=address)
    failures = AuditEntry.objects.filter(at__gt=since, verb="fail_sign_in", address=address)
    # An address that tries many names is one lock-out, not one for each name.
    return rows.filter(object_name=username).exists() or (
        rows.exists() and failures.count() >= settings.SIGN_IN_ADDRESS_FAILURE_LIMIT
    )


def refresh_access(refresh_token: str) -> dict[str, str]:
    """A new access token. Raises Refusal 401 `not_signed_in` for a token that is not valid any more,
    or whose person is gone, inactive, has another password since, or was signed out there."""
    try:
        refresh = RefreshToken(refresh_token)  # type: ignore[arg-type]
    except TokenError:
        raise Refusal("not_signed_in", 401) from None
    person = refresh.payload.get(api_settings.USER_ID_CLAIM)
    user = User.objects.filter(public_id=person, is_active=True).first()
    proof = refresh.payload.get(api_settings.REVOKE_TOKEN_CLAIM)
    if user is None or proof != get_md5_hash_password(user.password):
        raise Refusal("not_signed_in", 401)
    if not presence.is_live(str(refresh.payload.get(presence.MARK, "")), user):
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
