"""Writes to people and tenants. Every function names its actor and refuses what the actor may not do."""

from apps.tenants.services.accounts import change_profile, note_new_password, set_password
from apps.tenants.services.keys import change_key, issue_key, revoke_key, rotate_key, touch_keys
from apps.tenants.services.links import (
    accept_invitation,
    invite,
    join_by_invitation,
    link_address,
    offer_reset,
    open_invitations,
    reset_password,
    withdraw_link,
)
from apps.tenants.services.members import add_member, change_role, create_user, remove_member, set_active
from apps.tenants.services.sessions import end_session, end_sessions
from apps.tenants.services.tenants import change_tenant, create_tenant, resume_tenant, suspend_tenant

__all__ = [
    "accept_invitation",
    "add_member",
    "change_key",
    "change_profile",
    "change_role",
    "change_tenant",
    "create_tenant",
    "create_user",
    "end_session",
    "end_sessions",
    "invite",
    "issue_key",
    "join_by_invitation",
    "link_address",
    "note_new_password",
    "offer_reset",
    "open_invitations",
    "remove_member",
    "reset_password",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "set_active",
    "set_password",
    "suspend_tenant",
    "touch_keys",
    "withdraw_link",
]
