"""Forms of API keys: what a new one may do, what of an old one changes, how long a rotated one lives on.
As in `forms.py` every rule is the service's."""

from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from apps.portal.forms import RefusalForm, TenantForm
from apps.tenants.models import ApiKey, KeyScope, usual_scopes

_OVERLAPS = (
    (0, _("ends at once")),
    (3600, _("works on for an hour")),
    (86400, _("works on for a day")),
    (7 * 86400, _("works on for seven days")),
)


def overlap_choices() -> list[tuple[int, Any]]:
    """For how many seconds the value before may work on, as KEY_OVERLAP_MAX_S allows."""
    return [(seconds, words) for seconds, words in _OVERLAPS if seconds <= settings.KEY_OVERLAP_MAX_S]


def _listed(text: str) -> list[str] | None:
    """What stands between commas; None for nothing."""
    return [part.strip() for part in text.split(",") if part.strip()] or None


class KeyLimitsForm(forms.Form):
    """A key's name and limits."""

    name = forms.CharField(
        label=_("Name"), max_length=200, help_text=_("So that you know it again: who or what will use it.")
    )
    allowed_models = forms.CharField(
        label=_("Models"),
        required=False,
        help_text=_("Model names separated by commas. Empty: every model of the tenant."),
    )
    allowed_addresses = forms.CharField(
        label=_("Addresses"),
        required=False,
        help_text=_("Addresses or networks such as 10.0.0.0/8, separated by commas. Empty: from anywhere."),
    )
    expires_at = forms.DateTimeField(
        label=_("Expires"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"),
        help_text=_("In the time zone of your account. Empty: never."),
    )
    scopes = forms.MultipleChoiceField(
        label=_("It may"),
        required=False,
        choices=KeyScope.choices,
        initial=usual_scopes,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("The last one is for testers. None chosen: the first two."),
    )

    def limits(self) -> dict[str, Any]:
        """As the services take them."""
        given = self.cleaned_data
        return {
            "scopes": given["scopes"] or usual_scopes(),
            "allowed_models": _listed(given["allowed_models"]),
            "allowed_addresses": _listed(given["allowed_addresses"]),
            "expires_at": given["expires_at"],
        }


class IssueKeyForm(KeyLimitsForm, TenantForm):
    """A new API key."""

    field_order = ["tenant", "name"]


class ChangeKeyForm(KeyLimitsForm, RefusalForm):
    """The limits of a key that there is."""

    def __init__(self, data: Any = None, *, key: ApiKey) -> None:
        present = {
            "name": key.name,
            "allowed_models": ", ".join(key.allowed_models or ()),
            "allowed_addresses": ", ".join(key.allowed_addresses or ()),
            "expires_at": key.expires_at,
            "scopes": key.scopes,
        }
        super().__init__(data, initial=present)

    def changes(self) -> dict[str, Any]:
        """Only what the person changed, so that what another one changed meanwhile stays."""
        given = {"name": self.cleaned_data["name"], **self.limits()}
        return {name: given[name] for name in self.changed_data}


class RotateKeyForm(forms.Form):
    """What becomes of the value before; without a word it ends at once."""

    overlap_seconds = forms.TypedChoiceField(
        label=_("The old key"), choices=overlap_choices, coerce=int, required=False, empty_value=None
    )
