"""What the addresses of people take and answer (TEN-10). No rule lives here."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import Body
from apps.tenants.models import OneTimeLink, Role, SignedIn, User


class LinkShape(serializers.ModelSerializer[OneTimeLink]):
    """A link without its token, of which only the hash is kept."""

    id = serializers.CharField(source="public_id", read_only=True)
    created_by = serializers.CharField(source="created_by.username", read_only=True, default=None)

    class Meta:
        model = OneTimeLink
        fields = ["id", "purpose", "role", "email", "created_by", "created_at", "expires_at"]


class LinkOnceShape(LinkShape):
    """With `token` and `link`: shown in this answer and never again. `mailed`: null = no address given,
    or no mail server configured; false = it could not be sent."""

    token = serializers.SerializerMethodField()
    link = serializers.SerializerMethodField()
    mailed = serializers.SerializerMethodField()

    class Meta(LinkShape.Meta):
        fields = ["token", "link", "mailed", *LinkShape.Meta.fields]

    def get_token(self, link: OneTimeLink) -> str:
        plain: str = self.context["plain"]
        return plain

    def get_link(self, link: OneTimeLink) -> str:
        address: str = self.context["address"]
        return address

    def get_mailed(self, link: OneTimeLink) -> bool | None:
        mailed: bool | None = self.context["mailed"]
        return mailed


class InvitationBody(Body):
    role = serializers.ChoiceField(choices=Role.choices)
    email = serializers.EmailField(max_length=254, required=False, allow_blank=True)


class AcceptBody(Body):
    token = serializers.CharField(max_length=200, write_only=True)
    username = serializers.RegexField(r"^[\w.@+-]+\Z", max_length=150)
    password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True)
    language = serializers.CharField(max_length=10, required=False, allow_blank=True)


class ResetBody(Body):
    token = serializers.CharField(max_length=200, write_only=True)
    password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True)


class PasswordBody(Body):
    old_password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True)
    password = serializers.CharField(max_length=1000, trim_whitespace=False, write_only=True)


class ProfileBody(Body):
    """Empty = as the browser says."""

    language = serializers.CharField(max_length=10, required=False, allow_blank=True)
    time_zone = serializers.CharField(max_length=50, required=False, allow_blank=True)


class PersonShape(serializers.ModelSerializer[User]):
    id = serializers.CharField(source="public_id", read_only=True)

    class Meta:
        model = User
        fields = ["id", "username"]


class SessionShape(serializers.ModelSerializer[SignedIn]):
    """`way`: a browser's session, or a program's tokens. `last_seen_at` is exact to SESSION_SEEN_STEP_S."""

    id = serializers.CharField(source="public_id", read_only=True)
    current = serializers.SerializerMethodField()

    class Meta:
        model = SignedIn
        fields = ["id", "way", "address", "agent", "created_at", "last_seen_at", "current"]

    def get_current(self, session: SignedIn) -> bool:
        return bool(session.public_id == self.context["mark"])


class EndedShape(serializers.Serializer[Any]):
    ended = serializers.IntegerField()
