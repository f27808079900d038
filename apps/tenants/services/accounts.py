"""A person's own account (TEN-10): language, time zone, password. A new password ends every session
but the one that set it, and every token."""

import zoneinfo
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from apps.core import audit
from apps.core.errors import FieldError, Invalid
from apps.tenants import presence
from apps.tenants.models import SignedIn, User
from apps.tenants.scope import Viewer
from apps.tenants.services.members import note_person


def change_profile(
    *, actor: Viewer, user: User, language: str | None = None, time_zone: str | None = None
) -> User:
    """Save a language of LANGUAGES and a time zone; "" = as the browser says, None = as it is.

    The caller passes the actor's own account. Raises Invalid.
    """
    wanted: dict[str, Any] = {"language": language, "time_zone": time_zone}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    errors = []
    languages = dict(settings.LANGUAGES)
    if language and language not in languages:
        choices = ", ".join(languages)
        errors.append(FieldError("language", "not_a_choice", language, {"choices": choices}))
    if time_zone and time_zone not in zoneinfo.available_timezones():
        errors.append(FieldError("time_zone", "bad_time_zone", time_zone))
    if errors:
        raise Invalid(errors)
    with transaction.atomic():
        present = User.objects.select_for_update().get(pk=user.pk)
        before, after = audit.changes(audit.picture(present, *wanted), wanted)
        if after:
            User.objects.filter(pk=user.pk).update(**after)
            note_person(actor, "change_profile", user, before=before, after=after)
    user.refresh_from_db()
    return user


def set_password(
    *,
    actor: Viewer,
    user: User,
    password: str,
    verb: str = "set_password",
    keep: str = "",
    check: bool = True,
    now: datetime,
) -> None:
    """Give a person a new password; `keep` is the session (public id) that stays. Who may is the
    caller's to check. Raises Invalid for a weak one (`check=False`: a generated one)."""
    if check:
        ensure_strong(password, user)
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        note_new_password(actor=actor, user=user, verb=verb, keep=keep, now=now)


def note_new_password(
    *, actor: Viewer, user: User, verb: str = "set_password", keep: str = "", now: datetime
) -> None:
    """What follows from a new password that the caller has just saved in this transaction."""
    presence.end_rows(SignedIn.objects.filter(user=user).exclude(public_id=keep), now)
    note_person(actor, verb, user)


def ensure_strong(password: str, user: User | None = None) -> None:
    """Raises Invalid with the sentences of the password rules."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        sentence = " ".join(error.messages)
        raise Invalid([FieldError("password", "validation", None, {"message": sentence})]) from None
