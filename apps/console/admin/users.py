"""People: accounts, passwords, operators. What they may do in tenants stands in memberships."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from apps.console.admin.base import OperatorAdmin, ReadOnlyRows
from apps.tenants import services
from apps.tenants.models import Membership, User
from apps.tenants.scope import viewer_of

# Roles are memberships (TEN-02); Django's own groups grant nothing here.
admin.site.unregister(Group)


class MembershipRows(ReadOnlyRows):
    model = Membership
    fields = ["tenant", "role"]
    readonly_fields = ["tenant", "role"]


@admin.register(User)
class UserAdmin(OperatorAdmin, DjangoUserAdmin):
    """An operator is a superuser who may enter the console (both boxes)."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "operator", "is_active", "last_login"]
    list_filter = ["is_superuser", "is_active"]
    search_fields = ["username", "email", "public_id"]
    ordering = ["username"]
    filter_horizontal = []
    readonly_fields = ["public_id", "last_login", "date_joined"]
    inlines = [MembershipRows]
    fieldsets = (
        (None, {"fields": ["username", "password", "public_id"]}),
        (_("Person"), {"fields": ["first_name", "last_name", "email", "language", "time_zone"]}),
        (_("Access"), {"fields": ["is_active", "is_staff", "is_superuser"]}),
        (_("Dates"), {"fields": ["last_login", "date_joined"]}),
    )
    add_fieldsets = (
        (None, {"fields": ["username", "email", "password1", "password2", "is_staff", "is_superuser"]}),
    )

    @display(description=_("operator"), boolean=True)
    def operator(self, row: User) -> bool:
        return row.is_operator

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and "is_active" in form.changed_data:
            services.set_active(actor=viewer_of(request.user), user=obj, active=obj.is_active)

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.inlines if obj else []
