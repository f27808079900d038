"""People and tenants: users, where they are signed in, one-time links, memberships, shared groups, quotas,
API keys."""

from django.contrib.auth.models import AbstractUser
from django.core.validators import MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from apps.core.fields import PublicIdField


class Role(models.TextChoices):
    """Roles by membership (TEN-02); the platform operator stands above tenants (User.is_operator)."""

    OWNER = "owner", _("owner")
    ADMIN = "admin", _("admin")
    MEMBER = "member", _("member")
    VIEWER = "viewer", _("viewer")


class User(AbstractUser):
    """A person. Operators are superusers; everybody else acts through memberships."""

    public_id = PublicIdField(kind="user")
    language = models.CharField(max_length=10, blank=True, default="")
    time_zone = models.CharField(max_length=50, blank=True, default="")

    @property
    def is_operator(self) -> bool:
        return self.is_active and self.is_superuser


class TenantStatus(models.TextChoices):
    ACTIVE = "active", _("active")
    SUSPENDED = "suspended", _("suspended")


class Tenant(models.Model):
    """TEN-01. While suspended its keys answer 403 and nothing of it is placed or deleted."""

    public_id = PublicIdField(kind="tenant")
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=20, choices=TenantStatus.choices, default=TenantStatus.ACTIVE)
    suspended_reason = models.CharField(max_length=500, blank=True, default="")
    # Whether training may borrow the cards of its sleeping services, and for how many minutes at most
    # (SHARE-04); empty = LOAN_MAX_S.
    lends = models.BooleanField(default=True)
    loan_max_minutes = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    # What it is entitled to beside others of one priority, where shares are fair (SCHED-17).
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.01)])
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug

    @property
    def suspension(self) -> str | None:
        """The reason, which may be empty, while it is suspended; else None."""
        return self.suspended_reason if self.status == TenantStatus.SUSPENDED else None


class Quota(models.Model):
    """TEN-07. Empty = no limit. The row is locked by whoever creates or scales, so that parallel
    requests count one after the other."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, related_name="quota")
    gpus = models.PositiveIntegerField(null=True, blank=True)
    task_groups = models.PositiveIntegerField(null=True, blank=True)
    replicas = models.PositiveIntegerField(null=True, blank=True)
    endpoints = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_month = models.PositiveBigIntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return str(self.tenant)


class Membership(models.Model):
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="one_membership_each")]

    def __str__(self) -> str:
        return f"{self.user}@{self.tenant}: {self.role}"


class SharedGroup(models.Model):
    """Tenants that an operator declares to share cards and services (TEN-03). None = isolation."""

    name = models.CharField(max_length=100, unique=True)
    tenants = models.ManyToManyField(Tenant, related_name="shared_groups", blank=True)

    def __str__(self) -> str:
        return self.name


class KeyScope(models.TextChoices):
    """What a gateway key may do (TEN-06); the gateway's words for it are those of `routing.table`."""

    INFERENCE = "inference", _("call models")
    MODELS = "models", _("list its models")
    PIN = "pin", _("choose version or backend itself")


def usual_scopes() -> list[str]:
    """Those of a key of which nothing else is said."""
    return [KeyScope.INFERENCE.value, KeyScope.MODELS.value]


class ApiKey(models.Model):
    """A gateway key (TEN-06): sha256 and display prefix only; the key itself is shown once.

    `allowed_models` null = every model of the tenant, `allowed_addresses` null = from anywhere. `bounds`: by
    name, the limits that an owner, admin or operator set; members change the key within them alone. After a
    rotation with an overlap the value before works until `former_until` as well.
    """

    public_id = PublicIdField(kind="key")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    member = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(max_length=20, editable=False)
    # Most keys have none, and a blank one would not be unique.
    former_sha256 = models.CharField(max_length=64, unique=True, null=True, editable=False)  # noqa: DJ001
    former_prefix = models.CharField(max_length=20, blank=True, default="", editable=False)
    former_until = models.DateTimeField(null=True, editable=False)
    scopes = models.JSONField(default=usual_scopes)
    bounds = models.JSONField(default=dict, blank=True, editable=False)
    allowed_models = models.JSONField(null=True, blank=True)
    allowed_addresses = models.JSONField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"


class SignInWay(models.TextChoices):
    WEB = "web", _("browser")
    API = "api", _("program")


class SignedIn(models.Model):
    """One place where a person is signed in (TEN-10): a browser's session, or a refresh token with the
    access tokens that come from it. Ended here, it is ended at once."""

    public_id = PublicIdField(kind="session")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="signed_in")
    way = models.CharField(max_length=10, choices=SignInWay.choices)
    session_key = models.CharField(max_length=40, blank=True, default="", db_index=True, editable=False)
    address = models.CharField(max_length=45, blank=True, default="")
    agent = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-last_seen_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.user}: {self.public_id}"


class LinkPurpose(models.TextChoices):
    INVITE = "invite", _("invitation")
    RESET = "reset", _("new password")


class OneTimeLink(models.Model):
    """A link that works once (TEN-10): it makes whoever has it a member of `tenant`, or lets `user` set a
    new password. Only its hash is kept."""

    public_id = PublicIdField(kind="link")
    purpose = models.CharField(max_length=10, choices=LinkPurpose.choices)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="links")
    role = models.CharField(max_length=10, choices=Role.choices, blank=True, default="")
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="links")
    email = models.EmailField(blank=True, default="")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="made_links")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, editable=False)
    withdrawn_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.public_id
