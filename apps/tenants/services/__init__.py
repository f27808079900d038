"""Writes to people and tenants. Every function names its actor and refuses what the actor may not do."""

from apps.tenants.services.keys import issue_key, revoke_key, rotate_key, touch_keys
from apps.tenants.services.members import add_member, change_role, create_user, remove_member, set_active
from apps.tenants.services.tenants import change_tenant, create_tenant, resume_tenant, suspend_tenant

__all__ = [
    "add_member",
    "change_role",
    "change_tenant",
    "create_tenant",
    "create_user",
    "issue_key",
    "remove_member",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "set_active",
    "suspend_tenant",
    "touch_keys",
]
