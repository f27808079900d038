"""The console's sign-in form. Whether name and password match is tenants' business, as at every door."""

from typing import Any

from django.core.exceptions import ValidationError
from unfold.forms import AuthenticationForm

from apps.core import texts
from apps.core.errors import Refusal
from apps.tenants import sign_in


class SignInForm(AuthenticationForm):
    """Name and password, slowed and noted as elsewhere (TEN-05, TEN-08)."""

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name is not None and password and self.request is not None:
            try:
                self.user_cache = sign_in.verify(self.request, name, password)
            except Refusal as refusal:
                raise ValidationError(texts.say(refusal.code, refusal.params)) from None
            self.confirm_login_allowed(self.user_cache)
        return self.cleaned_data
