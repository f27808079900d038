"""Slows who tries many names from one address (TEN-05); one name from one address is axes' own limit.

Owns the limit of an address. It counts the rows that axes keeps of failed attempts, so that every way
in counts and every process sees the same number.
"""

from typing import Any

from axes.helpers import get_client_ip_address
from axes.models import AccessAttempt
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db.models import Sum
from django.http import HttpRequest

from apps.core.clock import utc_now


class AddressLimit:
    """A backend that knows nobody (no `get_user`, so that no session names it) and stands before all
    others: an address that has spent its failures is refused before a password is looked at, whatever
    name it gives, and what it then tries is not counted anew."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        """Raises PermissionDenied, with the request marked as locked out, for a spent address."""
        if request is None:  # a program that asks by itself has no address
            return
        if failures_from(get_client_ip_address(request)) >= settings.SIGN_IN_ADDRESS_FAILURE_LIMIT:
            request.axes_locked_out = True  # type: ignore[attr-defined]
            raise PermissionDenied


def failures_from(address: str | None) -> int:
    """Failed attempts from an address that are not older than SIGN_IN_COOLOFF_S."""
    since = utc_now() - settings.AXES_COOLOFF_TIME
    rows = AccessAttempt.objects.filter(ip_address=address, attempt_time__gt=since)
    return rows.aggregate(total=Sum("failures_since_start"))["total"] or 0
