"""People and their roles in tenants (TEN-02). Nobody gives, changes or takes a role above their own."""

from datetime import datetime
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.core import audit, versions
from apps.core.clock import utc_now
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.tenants import presence
from apps.tenants.models import (
    ApiKey,
    LinkPurpose,
    Membership,
    OneTimeLink,
    Role,
    SignedIn,
    Tenant,
    User,
)
from apps.tenants.scope import MANAGES_ALL, SYSTEM, Viewer
from apps.tenants.services.keys import note_key
from apps.tenants.trail import tenancy_of

ORDER: dict[str, int] = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2, Role.OWNER: 3}


def create_user(
    *,
    username: str,
    password: str,
    is_operator: bool = False,
    email: str = "",
    check_password: bool = True,
    actor: Viewer = SYSTEM,
) -> User:
    """A person; an operator is a superuser who may enter the console.

    Callers decide who may call this. Raises Conflict `name_taken`, Invalid for a weak password
    (skipped by `check_password=False`, for generated ones).
    """
    user = User(username=username, email=email, is_superuser=is_operator, is_staff=is_operator)
    if check_password:
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise Invalid(
                [FieldError("password", "validation", None, {"message": " ".join(error.messages)})]
            ) from None
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save()
            note_person(actor, "create_user", user, after={"email": email, "is_operator": is_operator})
    except IntegrityError:
        raise Conflict(
            "name_taken", errors=[FieldError("username", "name_taken", username)], value=username
        ) from None
    return user


def set_active(*, user: User, active: bool, actor: Viewer = SYSTEM) -> None:
    """Open or close an account. A closed one signs in nowhere and its keys open nothing from the
    gateway's next look on; nothing of it is deleted. Operators only, which is the caller's to check."""
    with transaction.atomic():
        was = User.objects.select_for_update().values_list("is_active", flat=True).get(pk=user.pk)
        User.objects.filter(pk=user.pk).update(is_active=active)
        verb = "open_account" if active else "close_account"
        note_person(actor, verb, user, before={"is_active": was}, after={"is_active": active})
        if not active:
            presence.end_rows(SignedIn.objects.filter(user=user), utc_now())
            _withdraw_links_of(user, utc_now())
        versions.bump()


def add_member(*, actor: Viewer, tenant: Tenant, user: User, role: str = Role.MEMBER) -> Membership:
    """Raises Forbidden for anyone but operators, owners and admins; Invalid for a role above the
    actor's own; Conflict `already_a_member`."""
    _may_manage(actor, tenant)
    _within_own(actor, tenant, role)
    return enrol(actor=actor, tenant=tenant, user=user, role=role)


def enrol(*, actor: Viewer, tenant: Tenant, user: User, role: str) -> Membership:
    """Write a membership that the caller has judged. Raises Conflict `already_a_member`."""
    with transaction.atomic():
        membership, new = Membership.objects.get_or_create(user=user, tenant=tenant, defaults={"role": role})
        if not new:
            error = FieldError("username", "already_a_member", user.get_username())
            raise Conflict("invalid", errors=[error])
        _note(actor, "add_member", membership, after={"role": role})
    return membership


def change_role(*, actor: Viewer, membership: Membership, role: str, now: datetime) -> Membership:
    """Give a member another role. Someone who becomes a viewer loses their keys.

    Raises Forbidden for anyone but operators, owners and admins, and for a member who stands above
    the actor; Invalid for a role above the actor's own; Conflict `last_owner`.
    """
    _may_manage(actor, membership.tenant)
    _within_own(actor, membership.tenant, role)
    with transaction.atomic():
        present = _locked(actor, membership)
        if present.role == Role.OWNER and role != Role.OWNER:
            _keep_an_owner(actor, present)
        Membership.objects.filter(pk=present.pk).update(role=role)
        if role != present.role:
            _note(actor, "change_role", present, before={"role": present.role}, after={"role": role})
        if ORDER[role] < ORDER[present.role]:
            _withdraw_links_of(present.user, now, tenant=present.tenant)
        if role == Role.VIEWER:
            _revoke_keys(actor, present, now)
    membership.refresh_from_db()
    return membership


def remove_member(*, actor: Viewer, membership: Membership, now: datetime) -> None:
    """End a membership and revoke the person's keys of this tenant. What they created stays.

    Everybody may leave. Raises Forbidden for anyone else but operators, owners and admins, and for
    a member who stands above the actor; Conflict `last_owner`.
    """
    if membership.user_id != actor.user_id:
        _may_manage(actor, membership.tenant)
    with transaction.atomic():
        present = _locked(actor, membership)
        if present.role == Role.OWNER:
            _keep_an_owner(actor, present)
        _revoke_keys(actor, present, now)
        _withdraw_links_of(present.user, now, tenant=present.tenant)
        _note(actor, "remove_member", present, before={"role": present.role})
        present.delete()


def _withdraw_links_of(user: User, now: datetime, *, tenant: Tenant | None = None) -> None:
    """End the open links that a person made and has no right to any more: those into a tenant, and
    all for new passwords; all of them without a tenant."""
    links = OneTimeLink.objects.filter(created_by=user, used_at__isnull=True, withdrawn_at__isnull=True)
    if tenant is not None:
        links = links.filter(Q(tenant=tenant) | Q(purpose=LinkPurpose.RESET))
    links.update(withdrawn_at=now)


def _may_manage(actor: Viewer, tenant: Tenant) -> None:
    if not actor.is_operator and actor.roles.get(tenant.pk) not in MANAGES_ALL:
        raise Forbidden


def _within_own(actor: Viewer, tenant: Tenant, role: str) -> None:
    if role not in ORDER:
        raise Invalid([FieldError("role", "not_a_choice", role, {"choices": ", ".join(Role.values)})])
    if actor.is_operator:
        return
    own = actor.roles[tenant.pk]
    if ORDER[role] > ORDER[own]:
        raise Invalid([FieldError("role", "role_above_own", role, {"own": own})])


def _locked(actor: Viewer, membership: Membership) -> Membership:
    """The membership as it is now, for update, with all owners of its tenant."""
    list(Membership.objects.select_for_update().filter(tenant=membership.tenant_id, role=Role.OWNER))
    present = Membership.objects.select_for_update().get(pk=membership.pk)
    own = actor.roles.get(present.tenant_id, Role.VIEWER)
    leaving = present.user_id == actor.user_id
    if not actor.is_operator and not leaving and ORDER[present.role] > ORDER[own]:
        raise Forbidden
    return present


def _keep_an_owner(actor: Viewer, leaving: Membership) -> None:
    others = Membership.objects.filter(tenant=leaving.tenant_id, role=Role.OWNER).exclude(pk=leaving.pk)
    if not actor.is_operator and not others.exists():
        raise Conflict("last_owner")


def _revoke_keys(actor: Viewer, membership: Membership, now: datetime) -> None:
    live = ApiKey.objects.select_related("tenant").filter(
        tenant=membership.tenant_id, member=membership.user_id, revoked_at__isnull=True
    )
    for key in live:
        if ApiKey.objects.filter(pk=key.pk, revoked_at__isnull=True).update(revoked_at=now):
            note_key(actor, "revoke_key", key, after={"revoked_at": now})
            versions.bump()


def note_person(actor: audit.Actor, verb: str, user: User, **values: Any) -> None:
    """Note what was done with a person's account, which belongs to no tenant."""
    audit.note(actor, verb, kind="user", public_id=user.public_id, name=user.get_username(), **values)


def _note(actor: Viewer, verb: str, membership: Membership, **values: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="membership",
        public_id=membership.user.public_id,
        name=membership.user.get_username(),
        tenant=tenancy_of(membership.tenant),
        **values,
    )
