"""Where people are signed in (TEN-10), and the language and time zone that they chose.

Owns the rows of SignedIn: made at sign-in, touched now and then, ended with the session. A session that
came to be in another way (the console's own sign-in page) gets its row with its first answer. Deciding who
may end what is services' business.
"""

import logging
import zoneinfo
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone, translation
from django.utils.deprecation import MiddlewareMixin
from rest_framework_simplejwt.settings import api_settings

from apps.core import audit
from apps.core.clock import utc_now
from apps.tenants.models import SignedIn, SignInWay, User
from apps.tenants.scope import viewer_of

log = logging.getLogger("heteroflow.tenants")

MARK = "signed_in"  # the row's public id, inside the session or the token
_SEEN = "signed_in_seen"  # when the row was last touched, so that not every request writes


def open_row(
    user: User, way: SignInWay, now: datetime, *, address: str = "", agent: str = "", session_key: str = ""
) -> SignedIn:
    """A person's new row; their rows that were not used for SESSION_KEEP_S go."""
    long_ago = now - timedelta(seconds=settings.SESSION_KEEP_S)
    SignedIn.objects.filter(user=user, last_seen_at__lt=long_ago).delete()
    return SignedIn.objects.create(
        user=user,
        way=way,
        session_key=session_key,
        address=address[:45],
        agent="".join(c for c in agent if c.isprintable())[:200],
        created_at=now,
        last_seen_at=now,
    )


def whence(request: HttpRequest) -> dict[str, str]:
    """Address and program that a request comes from, as `open_row` takes them."""
    return {
        "address": request.META.get("REMOTE_ADDR") or "",
        "agent": request.headers.get("User-Agent", ""),
    }


def live(user: User, now: datetime) -> QuerySet[SignedIn]:
    """Where a person is signed in at this moment."""
    fresh = now - api_settings.REFRESH_TOKEN_LIFETIME
    browsers = Session.objects.filter(expire_date__gt=now).values("session_key")
    return SignedIn.objects.filter(user=user, ended_at__isnull=True).filter(
        Q(way=SignInWay.API, created_at__gt=fresh) | Q(way=SignInWay.WEB, session_key__in=browsers)
    )


def is_live(public_id: str, user: User) -> bool:
    """Whether a token's row still stands, and touches it."""
    row = SignedIn.objects.filter(public_id=public_id, user=user, ended_at__isnull=True).first()
    if row is None:
        return False
    now = utc_now()
    if now - row.last_seen_at > timedelta(seconds=settings.SESSION_SEEN_STEP_S):
        SignedIn.objects.filter(pk=row.pk).update(last_seen_at=now)
    return True


def end_rows(rows: QuerySet[SignedIn], now: datetime) -> int:
    """End these at once, sessions and tokens alike; call inside the transaction of the act."""
    keys = [key for key in rows.values_list("session_key", flat=True) if key]
    ended = rows.filter(ended_at__isnull=True).update(ended_at=now)
    Session.objects.filter(session_key__in=keys).delete()
    return ended


class Presence(MiddlewareMixin):
    """Notes where the person of a session was seen, and speaks their language."""

    def process_request(self, request: HttpRequest) -> None:
        timezone.deactivate()
        if not request.session.session_key:
            return
        try:
            self._meet(request)
        except DatabaseError as error:  # the view tells it; a health check must not end here
            log.warning("where a person was seen could not be noted: %s", error)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if getattr(request, "session", None) is not None:
            try:
                self._part(request)
            except DatabaseError as error:
                log.warning("where a person signed in could not be noted: %s", error)
        return response

    def _meet(self, request: Any) -> None:
        user = request.user
        if not isinstance(user, User):
            return
        speak(request, user)
        request.met_as = (request.session.get(MARK), request.session.session_key, user)
        now = utc_now()
        seen = request.session.get(_SEEN, 0)
        if request.session.get(MARK) and now.timestamp() - seen > settings.SESSION_SEEN_STEP_S:
            request.session[_SEEN] = now.timestamp()
            SignedIn.objects.filter(public_id=request.session[MARK]).update(
                last_seen_at=now, address=(request.META.get("REMOTE_ADDR") or "")[:45]
            )

    def _part(self, request: Any) -> None:
        mark, key, person = getattr(request, "met_as", (None, None, None))
        now = utc_now()
        # Only where somebody was met, or a session came to be: else nothing is asked.
        user = request.user if request.session.session_key else None
        if not isinstance(user, User):
            if person is not None:
                _sign_out(mark, person, now)
            return
        if request.session.get(MARK) is None:
            request.session[MARK] = open_row(
                user, SignInWay.WEB, now, session_key=request.session.session_key, **whence(request)
            ).public_id
            request.session[_SEEN] = now.timestamp()
        elif request.session.session_key != key:  # a new password gives the session a new key
            rows = SignedIn.objects.filter(public_id=request.session[MARK])
            rows.update(session_key=request.session.session_key)


def speak(request: HttpRequest, user: User) -> None:
    """The person's own language, and on pages their time zone (the API answers in UTC)."""
    if user.language in dict(settings.LANGUAGES):
        translation.activate(user.language)
        request.LANGUAGE_CODE = translation.get_language()
    if user.time_zone and not request.path.startswith("/api/"):
        try:
            timezone.activate(zoneinfo.ZoneInfo(user.time_zone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            log.warning("the time zone %r of %s is not known here", user.time_zone, user.public_id)


def _sign_out(mark: str | None, person: User, now: datetime) -> None:
    """Of a session that has no row yet, too."""
    with transaction.atomic():
        rows = SignedIn.objects.filter(public_id=mark or "", ended_at__isnull=True)
        if rows.update(ended_at=now) or mark is None:
            name = person.get_username()
            audit.note(viewer_of(person), "sign_out", kind="user", public_id=person.public_id, name=name)
