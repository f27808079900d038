"""One-time links (TEN-10): an invitation into a tenant, a new password. Shown once; the hash is kept.

Owns who may make which, and that each works once, before it expires, and not after whoever made it lost
the right to.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from apps.core import audit, secrets
from apps.core.errors import FieldError, Forbidden, Invalid, Refusal
from apps.tenants.models import LinkPurpose, Membership, OneTimeLink, Role, Tenant, User
from apps.tenants.scope import MANAGES_ALL, Viewer, viewer_of
from apps.tenants.services.accounts import ensure_strong, set_password
from apps.tenants.services.members import ORDER, create_user, enrol, note_person
from apps.tenants.trail import tenancy_of


def invite(
    *, actor: Viewer, tenant: Tenant, role: str, email: str = "", now: datetime
) -> tuple[OneTimeLink, str]:
    """An invitation into a tenant and its plain token, which is shown once.

    Raises Forbidden for anyone but operators, owners and admins; Invalid for a role above one's own.
    """
    own = actor.roles.get(tenant.pk)
    if not actor.is_operator and own not in MANAGES_ALL:
        raise Forbidden
    if role not in ORDER:
        raise Invalid([FieldError("role", "not_a_choice", role, {"choices": ", ".join(Role.values)})])
    if not actor.is_operator and own is not None and ORDER[role] > ORDER[own]:
        raise Invalid([FieldError("role", "role_above_own", role, {"own": own})])
    with transaction.atomic():
        link, plain = _make(
            actor, LinkPurpose.INVITE, settings.INVITATION_TTL_S, now, tenant=tenant, role=role, email=email
        )
        _note(actor, "invite", link, after={"role": role, "email": email, "expires_at": link.expires_at})
    return link, plain


def offer_reset(*, actor: Viewer, user: User, now: datetime) -> tuple[OneTimeLink, str]:
    """A link by which a person sets a new password, and its plain token; links of before end.

    Operators for anybody; owners for who stands in no tenant but theirs, since a password opens all of
    a person's tenants. Raises Forbidden, Refusal 403 `reset_by_operator_only`.
    """
    _may_reset(actor, user)
    with transaction.atomic():
        _open(now).filter(purpose=LinkPurpose.RESET, user=user).update(withdrawn_at=now)
        link, plain = _make(actor, LinkPurpose.RESET, settings.RESET_TTL_S, now, user=user, email=user.email)
        note_person(actor, "offer_reset", user, after={"expires_at": link.expires_at})
    return link, plain


def _may_reset(actor: Viewer, user: User) -> None:
    if actor.is_operator:
        return
    owned = set(actor.tenants_with(frozenset({Role.OWNER})))
    theirs = set(Membership.objects.filter(user=user).values_list("tenant_id", flat=True))
    if not owned & theirs:
        raise Forbidden
    if user.is_superuser or user.is_staff or theirs - owned:
        raise Refusal("reset_by_operator_only", 403)


def withdraw_link(*, actor: Viewer, link: OneTimeLink, now: datetime) -> bool:
    """End a link that nobody used; False where it had ended. Raises Forbidden for anyone but
    operators, and owners and admins of its tenant."""
    managed = link.tenant_id is not None and actor.roles.get(link.tenant_id) in MANAGES_ALL
    if not actor.is_operator and not managed:
        raise Forbidden
    with transaction.atomic():
        ended = bool(_open(now).filter(pk=link.pk).update(withdrawn_at=now))
        if ended:
            _note(actor, "withdraw_link", link)
    return ended


def accept_invitation(*, token: str, username: str, password: str, language: str = "", now: datetime) -> User:
    """Make whoever holds an invitation a person and a member, once.

    Raises Refusal 404 `link_unknown`; Conflict `name_taken`, Invalid for a weak password, and the
    invitation stays then.
    """
    with transaction.atomic():
        link = _redeem(LinkPurpose.INVITE, token, now)
        ensure_strong(password, User(username=username, email=link.email))
        actor = Viewer(name=username)
        user = create_user(username=username, password=password, email=link.email, actor=actor)
        if language in dict(settings.LANGUAGES):
            User.objects.filter(pk=user.pk).update(language=language)
        _enter(link, user)
    user.refresh_from_db()
    return user


def join_by_invitation(*, actor: Viewer, user: User, token: str, now: datetime) -> Membership:
    """Let a person who has an account, and is the actor, into the tenant. Raises Refusal 404
    `link_unknown`, Conflict `already_a_member`."""
    with transaction.atomic():
        return _enter(_redeem(LinkPurpose.INVITE, token, now), user)


def reset_password(*, token: str, password: str, now: datetime) -> User:
    """Set the password of the person whom a link is for; every session and token of theirs ends.

    Raises Refusal 404 `link_unknown`, Invalid for a weak password (the link stays then).
    """
    with transaction.atomic():
        link = _redeem(LinkPurpose.RESET, token, now)
        user = link.user
        if user is None or not user.is_active:
            raise Refusal("link_unknown", 404)
        try:
            # Judged anew: the person may have joined other tenants, or become an operator, since.
            _may_reset(viewer_of(link.created_by), user)
        except Refusal:
            raise Refusal("link_unknown", 404) from None
        actor = viewer_of(user)
        set_password(actor=actor, user=user, password=password, verb="reset_password", now=now)
    return user


def open_invitations(now: datetime) -> QuerySet[OneTimeLink]:
    """Invitations that still work, into whatever tenant."""
    rows = OneTimeLink.objects.select_related("created_by", "tenant")
    return _open(now, rows).filter(purpose=LinkPurpose.INVITE)


def link_address(purpose: str, plain: str) -> str:
    """Where the link leads. The token stands behind the #, which no browser sends to any server, so
    that it stands in no log on the way."""
    page = "join" if purpose == LinkPurpose.INVITE else "new-password"
    return f"{settings.PUBLIC_URL.rstrip('/')}/{page}/#{plain}"


def _open(now: datetime, rows: QuerySet[OneTimeLink] | None = None) -> QuerySet[OneTimeLink]:
    every = OneTimeLink.objects.all() if rows is None else rows
    return every.filter(used_at__isnull=True, withdrawn_at__isnull=True, expires_at__gt=now)


def _make(
    actor: Viewer, purpose: LinkPurpose, ttl_s: float, now: datetime, **fields: object
) -> tuple[OneTimeLink, str]:
    plain = secrets.new_token("ln-")
    link = OneTimeLink.objects.create(
        purpose=purpose,
        sha256=secrets.sha256_hex(plain),
        created_by_id=actor.user_id,
        created_at=now,
        expires_at=now + timedelta(seconds=ttl_s),
        **fields,
    )
    return link, plain


def _redeem(purpose: LinkPurpose, token: str, now: datetime) -> OneTimeLink:
    """The link, held and marked as used; what fails after this undoes the mark."""
    rows = OneTimeLink.objects.select_for_update(of=("self",)).select_related("tenant", "user")
    link = _open(now, rows).filter(purpose=purpose, sha256=secrets.sha256_hex(token)).first()
    if link is None:
        raise Refusal("link_unknown", 404)
    link.used_at = now
    link.save(update_fields=["used_at"])
    return link


def _enter(link: OneTimeLink, user: User) -> Membership:
    assert link.tenant is not None  # every invitation has one
    actor = viewer_of(user)
    membership = enrol(actor=actor, tenant=link.tenant, user=user, role=link.role)
    _note(actor, "accept_invitation", link, after={"role": link.role})
    return membership


def _note(actor: Viewer, verb: str, link: OneTimeLink, **values: dict[str, object]) -> None:
    audit.note(
        actor,
        verb,
        kind="link",
        public_id=link.public_id,
        name=link.email or link.public_id,
        tenant=tenancy_of(link.tenant) if link.tenant else audit.NO_TENANT,
        **values,
    )
