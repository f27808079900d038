"""Enforces the scope that a view declares, so that a forgotten declaration closes it for everybody."""

from typing import Any

from rest_framework.permissions import BasePermission

from apps.core import scopes
from apps.tenants.models import User


class ByScope(BasePermission):
    """`public`: anybody; `signed_in` and `tenant`: a signed-in person; `operator`: operators.
    Anything else, `node` included, is not reached by people. Rows are the selectors' business."""

    def has_permission(self, request: Any, view: Any) -> bool:
        declared = scopes.scope_of(view)
        if declared == scopes.PUBLIC:
            return True
        user = request.user
        if not isinstance(user, User) or not user.is_active:
            return False
        if declared == scopes.OPERATOR:
            return user.is_operator
        return declared in (scopes.SIGNED_IN, scopes.TENANT)
