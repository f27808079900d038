"""Ending sessions (TEN-10): one's own, and by operators anybody's. Ended at once, tokens included."""

from datetime import datetime

from django.db import transaction

from apps.core.errors import NotFound
from apps.tenants import presence
from apps.tenants.models import SignedIn, User
from apps.tenants.scope import Viewer
from apps.tenants.services.members import note_person


def end_session(*, actor: Viewer, session: SignedIn, now: datetime) -> bool:
    """End one; False where it had ended. Raises NotFound for another person's."""
    _may_end(actor, session.user)
    with transaction.atomic():
        ended = bool(presence.end_rows(SignedIn.objects.filter(pk=session.pk), now))
        if ended:
            note_person(actor, "end_session", session.user, after={"session": session.public_id})
    return ended


def end_sessions(*, actor: Viewer, user: User, but: str = "", now: datetime) -> int:
    """End all of a person but one (public id); answers how many. Raises NotFound as end_session."""
    _may_end(actor, user)
    with transaction.atomic():
        ended = presence.end_rows(SignedIn.objects.filter(user=user).exclude(public_id=but), now)
        if ended:
            note_person(actor, "end_sessions", user, after={"sessions": ended})
    return ended


def _may_end(actor: Viewer, user: User) -> None:
    if not actor.is_operator and actor.user_id != user.pk:
        raise NotFound
