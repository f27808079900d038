"""What the addresses of people and tenants take and answer. No rule lives here."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import Body
from apps.tenants.models import (
    ApiKey,
    KeyScope,
    Membership,
    Quota,
    Role,
    Tenant,
    TenantStatus,
    User,
    usual_scopes,
)
from apps.tenants.scope import Viewer
from apps.tenants.services.tenants import SHARING

LOAN_LIMIT_MINUTES = 366 * 24 * 60

# --- sign-in --------------------------------------------------------------------------------------


class SignInBody(Body):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True)


class RefreshBody(Body):
    refresh = serializers.CharField(max_length=4096, write_only=True)


class TokensShape(serializers.Serializer[Any]):
    access = serializers.CharField()
    refresh = serializers.CharField()


class AccessShape(serializers.Serializer[Any]):
    access = serializers.CharField()


# --- me -------------------------------------------------------------------------------------------


class TenantRefShape(serializers.ModelSerializer[Tenant]):
    id = serializers.CharField(source="public_id", read_only=True)

    class Meta:
        model = Tenant
        fields = ["id", "slug", "name", "status"]


class MyMembershipShape(serializers.ModelSerializer[Membership]):
    tenant = TenantRefShape(read_only=True)

    class Meta:
        model = Membership
        fields = ["tenant", "role"]


class MeShape(serializers.ModelSerializer[User]):
    id = serializers.CharField(source="public_id", read_only=True)
    is_operator = serializers.BooleanField(read_only=True)
    memberships = MyMembershipShape(many=True, read_only=True)

    class Meta:
        model = User
        fields = ["id", "username", "is_operator", "language", "time_zone", "memberships"]


# --- tenants --------------------------------------------------------------------------------------


class QuotaShape(serializers.ModelSerializer[Quota]):
    """Null = no limit."""

    class Meta:
        model = Quota
        fields = ["gpus", "task_groups", "replicas", "endpoints", "tokens_per_day", "tokens_per_month"]


class TenantShape(serializers.ModelSerializer[Tenant]):
    id = serializers.CharField(source="public_id", read_only=True)
    quota = QuotaShape(read_only=True)
    my_role = serializers.SerializerMethodField()

    class Meta:
        model = Tenant
        fields = [
            "id",
            "slug",
            "name",
            "status",
            "suspended_reason",
            *SHARING,
            "quota",
            "my_role",
            "created_at",
        ]

    def get_my_role(self, tenant: Tenant) -> str | None:
        viewer: Viewer = self.context["viewer"]
        return viewer.roles.get(tenant.pk)


def _limit(largest: int) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=largest, allow_null=True, required=False)


class QuotaBody(Body):
    """Null = no limit; a kind that is not named stays as it is."""

    gpus = _limit(2**31 - 1)
    task_groups = _limit(2**31 - 1)
    replicas = _limit(2**31 - 1)
    endpoints = _limit(2**31 - 1)
    tokens_per_day = _limit(2**53)
    tokens_per_month = _limit(2**53)


class NewTenantBody(Body):
    slug = serializers.SlugField(max_length=50)
    name = serializers.CharField(max_length=200, required=False)
    quota = QuotaBody(required=False)


class TenantChangesBody(Body):
    """`status: suspended` needs `suspended_reason`, which its people and callers are shown."""

    name = serializers.CharField(max_length=200, required=False)
    status = serializers.ChoiceField(choices=TenantStatus.choices, required=False)
    suspended_reason = serializers.CharField(max_length=500, required=False, allow_blank=True)
    quota = QuotaBody(required=False)
    lends = serializers.BooleanField(
        required=False, help_text="whether training may borrow cards of sleeping services"
    )
    loan_max_minutes = serializers.IntegerField(
        min_value=1, max_value=LOAN_LIMIT_MINUTES, allow_null=True, required=False
    )
    weight = serializers.FloatField(
        min_value=0.01, max_value=1000, required=False, help_text="of its share, where FAIR_SHARE is on"
    )


# --- members --------------------------------------------------------------------------------------


class MemberShape(serializers.ModelSerializer[Membership]):
    id = serializers.CharField(source="user.public_id", read_only=True)
    username = serializers.CharField(source="user.username", read_only=True)
    is_active = serializers.BooleanField(source="user.is_active", read_only=True)

    class Meta:
        model = Membership
        fields = ["id", "username", "is_active", "role"]


class NewMemberBody(Body):
    """With a password the person is created; without one they must exist."""

    username = serializers.RegexField(r"^[\w.@+-]+\Z", max_length=150)
    role = serializers.ChoiceField(choices=Role.choices)
    password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True, required=False)


class RoleBody(Body):
    role = serializers.ChoiceField(choices=Role.choices)


# --- keys -----------------------------------------------------------------------------------------


class KeyShape(serializers.ModelSerializer[ApiKey]):
    """A key without its value: only the first characters are kept."""

    id = serializers.CharField(source="public_id", read_only=True)
    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    member = serializers.CharField(source="member.username", read_only=True)
    scopes = serializers.ListField(child=serializers.CharField(), read_only=True)
    allowed_models = serializers.ListField(child=serializers.CharField(), allow_null=True, read_only=True)
    allowed_addresses = serializers.ListField(child=serializers.CharField(), allow_null=True, read_only=True)

    class Meta:
        model = ApiKey
        fields = [
            "id",
            "name",
            "prefix",
            "former_prefix",
            "former_until",
            "tenant",
            "member",
            "scopes",
            "allowed_models",
            "allowed_addresses",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "created_at",
        ]


class KeyOnceShape(KeyShape):
    """With `key`, the value itself: shown in this answer and never again."""

    key = serializers.SerializerMethodField()

    class Meta(KeyShape.Meta):
        fields = ["key", *KeyShape.Meta.fields]

    def get_key(self, key: ApiKey) -> str:
        plain: str = self.context["plain"]
        return plain


class KeyLimitsBody(Body):
    """What a key may do, with which models, from where and until when."""

    scopes = serializers.ListField(
        child=serializers.CharField(max_length=50),
        max_length=20,
        required=False,
        help_text=f"of {', '.join(KeyScope.values)}; without them {', '.join(usual_scopes())}",
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200),
        max_length=200,
        required=False,
        allow_null=True,
        help_text="null: every model of the tenant",
    )
    allowed_addresses = serializers.ListField(
        child=serializers.CharField(max_length=100),
        max_length=100,
        required=False,
        allow_null=True,
        help_text="networks such as 10.0.0.0/8 or 2001:db8::/32; null: from anywhere",
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class NewKeyBody(KeyLimitsBody):
    """`tenant` may be left out by who has one only; `member` (a user name) by who issues for themselves."""

    name = serializers.CharField(max_length=200)
    tenant = serializers.CharField(max_length=50, required=False)
    member = serializers.CharField(max_length=150, required=False)


class KeyChangesBody(KeyLimitsBody):
    """What is not sent stays."""

    name = serializers.CharField(max_length=200, required=False)


class RotationBody(Body):
    overlap_seconds = serializers.IntegerField(
        required=False, help_text="for how long the present value works on; 0 and without it: not at all"
    )
