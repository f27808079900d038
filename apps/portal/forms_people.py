"""Forms about people: account, invitations, new passwords. As in `forms.py` every rule is the service's."""

import zoneinfo
from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from apps.portal.forms import RefusalForm
from apps.tenants.models import Role


def _password(label: Any, *, new: bool) -> forms.CharField:
    known = "new-password" if new else "current-password"
    return forms.CharField(
        label=label, strip=False, widget=forms.PasswordInput(attrs={"autocomplete": known})
    )


class ProfileForm(RefusalForm):
    """Language and time zone."""

    language = forms.ChoiceField(label=_("Language"), required=False)
    time_zone = forms.ChoiceField(label=_("Time zone"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zones = sorted(zone for zone in zoneinfo.available_timezones() if "/" in zone or zone == "UTC")
        choices: dict[str, list[Any]] = {
            "language": [("", _("As the browser says")), *settings.LANGUAGES],
            "time_zone": [("", _("As the browser says")), *((zone, zone) for zone in zones)],
        }
        for name, wanted in choices.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = wanted


class PasswordForm(RefusalForm):
    """Another password, by who knows the present one."""

    old_password = _password(_("Present password"), new=False)
    password = _password(_("New password"), new=True)


class InviteForm(RefusalForm):
    """What an invited person becomes."""

    role = forms.ChoiceField(label=_("Role"), choices=Role.choices, initial=Role.MEMBER)
    email = forms.EmailField(
        label=_("E-mail"),
        required=False,
        max_length=254,
        help_text=_("Sent there where e-mail is configured; the link is shown here in any case."),
    )


class TokenForm(RefusalForm):
    """The token of a link, which the page's script takes from the address."""

    token = forms.CharField(max_length=200, widget=forms.HiddenInput(attrs={"data-from-address": ""}))


class AcceptForm(TokenForm):
    """Name and password of an invited person."""

    username = forms.RegexField(
        r"^[\w.@+-]+\Z",
        label=_("User name"),
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autocapitalize": "none"}),
        help_text=_("Letters, digits and @ . + - _ only."),
    )
    password = _password(_("Password"), new=True)


class NewPasswordForm(TokenForm):
    """A new password by a link."""

    password = _password(_("New password"), new=True)
