"""Builders of rows for tests: plain functions, each with only the arguments that a test may care about.

They write rows directly and never go through services, so that a test of a service starts from a
known place. Names are unique per process; `NOW` is the moment that tests pass as `now`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from agent.contract.states import Parallelism, State, TaskType
from apps.core import secrets
from apps.core.clock import utc_now
from apps.fleet.models import Card, CardSample, JoinToken, Liveness, Node, NodeSample
from apps.tenants.models import (
    ApiKey,
    LinkPurpose,
    Membership,
    OneTimeLink,
    Quota,
    Role,
    SharedGroup,
    SignedIn,
    SignInWay,
    Tenant,
    User,
)
from apps.workloads.models import CardClaim, Claim, Task, TaskGroup

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PASSWORD = "a-long-enough-passphrase"

_numbers = count(1)


def unique(stem: str) -> str:
    """`stem-7`: a name that no other call of this process gave."""
    return f"{stem}-{next(_numbers)}"


# --- people ---------------------------------------------------------------------------------------


def make_tenant(slug: str = "", *, quota: dict[str, int] | None = None, **fields: Any) -> Tenant:
    """A tenant with its quota row (all empty = no limit)."""
    slug = slug or unique("tenant")
    tenant = Tenant.objects.create(slug=slug, name=fields.pop("name", slug), **fields)
    Quota.objects.create(tenant=tenant, **(quota or {}))
    return tenant


def make_user(username: str = "", *, password: str = PASSWORD, **fields: Any) -> User:
    """A person without memberships."""
    return User.objects.create_user(username=username or unique("user"), password=password, **fields)


def make_operator(username: str = "", **fields: Any) -> User:
    """A platform operator."""
    return make_user(username or unique("operator"), is_superuser=True, is_staff=True, **fields)


def make_member(
    tenant: Tenant | None = None, role: str = Role.MEMBER, *, user: User | None = None, username: str = ""
) -> User:
    """A user with one role in a tenant (a fresh tenant where none is given)."""
    user = user or make_user(username or unique(str(role)))
    Membership.objects.create(user=user, tenant=tenant or make_tenant(), role=role)
    return user


def make_shared_group(*tenants: Tenant, name: str = "") -> SharedGroup:
    """Tenants that share cards and services."""
    group = SharedGroup.objects.create(name=name or unique("shared"))
    group.tenants.set(tenants)
    return group


def make_key(tenant: Tenant | None = None, member: User | None = None, **fields: Any) -> tuple[ApiKey, str]:
    """A gateway key row and its plain value."""
    tenant = tenant or make_tenant()
    plain = secrets.new_api_key()
    key = ApiKey.objects.create(
        tenant=tenant,
        member=member or make_member(tenant),
        name=fields.pop("name", "") or unique("key"),
        sha256=secrets.sha256_hex(plain),
        prefix=secrets.display_prefix(plain),
        **fields,
    )
    return key, plain


def make_session(user: User | None = None, *, now: datetime | None = None, **fields: Any) -> SignedIn:
    """A program's session of a person, at this very moment where none is named."""
    at = now or utc_now()
    fields.setdefault("way", SignInWay.API)
    return SignedIn.objects.create(user=user or make_user(), created_at=at, last_seen_at=at, **fields)


def make_invitation(tenant: Tenant | None = None, by: User | None = None, **fields: Any) -> OneTimeLink:
    """An open invitation as a member."""
    at = utc_now()
    fields.setdefault("sha256", secrets.sha256_hex(unique("link")))
    fields.setdefault("role", Role.MEMBER)
    return OneTimeLink.objects.create(
        purpose=LinkPurpose.INVITE,
        tenant=tenant or make_tenant(),
        created_by=by,
        created_at=at,
        expires_at=at + timedelta(days=1),
        **fields,
    )


# --- machines -------------------------------------------------------------------------------------


def make_node(
    name: str = "",
    *,
    cards: int | Sequence[dict[str, Any]] = 1,
    sample: bool | dict[str, Any] = True,
    load: bool | dict[str, Any] = True,
    vram_total_mb: int | None = 24576,
    card_model: str = "RTX 4090",
    vendor: str = "nvidia",
    secret: str = "node-secret",
    now: datetime = NOW,
    last_seen_at: datetime | None = NOW,
    incarnation: str = "run-1",
    runtime: str = "docker",
    allowed_tenants: Sequence[Tenant] = (),
    allowed_groups: Sequence[SharedGroup] = (),
    **fields: Any,
) -> Node:
    """A node that is alive at NOW, with `cards` cards (a number, or one dict of fields each).

    `sample`: True = a sample with 0 MB used, a dict = those measured values, False = never measured.
    `load`: of its host likewise; True = 10 % of processors, memory and disk.
    `allowed_tenants` or `allowed_groups` close the node to everybody else.
    """
    name = name or unique("node")
    if allowed_tenants or allowed_groups:
        fields.setdefault("open_to_all", False)
    fields.setdefault("dial", {"kind": "direct", "host": "127.0.0.1"})
    fields.setdefault("cpu_count", 32)
    fields.setdefault("memory_total_mb", 131072)
    fields.setdefault("host_ipc", False)  # as Docker's agents have it by default
    fields.setdefault("engines", [{"name": "llamacpp", "version": None}, {"name": "vllm", "version": None}])
    node = Node.objects.create(
        name=name,
        hostname=fields.pop("hostname", name),
        machine_id=fields.pop("machine_id", f"machine-of-{name}"),
        secret_sha256=secrets.sha256_hex(secret),
        runtime=runtime,
        **fields,
    )
    node.allowed_tenants.set(allowed_tenants)
    node.allowed_groups.set(allowed_groups)
    Liveness.objects.create(
        node=node, incarnation=incarnation, incarnation_started_at=1.0, last_seen_at=last_seen_at
    )
    if load is not False:
        quiet = {"cpu_percent": 10.0, "memory_percent": 10.0, "disk_percent": 10.0}
        measured = load if isinstance(load, dict) else quiet
        NodeSample.objects.create(node=node, sampled_at=now, **measured)
    wanted = [{} for _ in range(cards)] if isinstance(cards, int) else cards
    for index, card_fields in enumerate(wanted):
        base = {"vendor": vendor, "model": card_model, "vram_total_mb": vram_total_mb}
        make_card(node, index, now=now, **{"sample": sample, **base, **card_fields})
    return node


def make_card(
    node: Node, index: int = 0, *, sample: bool | dict[str, Any] = True, now: datetime = NOW, **fields: Any
) -> Card:
    """One card of a node; `sample` as in make_node."""
    fields.setdefault("vendor", "nvidia")
    fields.setdefault("model", "RTX 4090")
    fields.setdefault("vram_total_mb", 24576)
    card = Card.objects.create(
        node=node, index=index, uuid=fields.pop("uuid", f"GPU-{node.pk}-{index}"), **fields
    )
    if sample is not False:
        measured = {"vram_used_mb": 0, "temperature_c": 40, "utilization_percent": 0}
        CardSample.objects.create(
            card=card, sampled_at=now, **(sample if isinstance(sample, dict) else measured)
        )
    return card


def make_join_token(
    operator: User | None = None, *, now: datetime = NOW, ttl_s: float = 3600, **fields: Any
) -> tuple[JoinToken, str]:
    """A join token row and its plain value."""
    plain = secrets.new_token("jt-")
    token = JoinToken.objects.create(
        sha256=secrets.sha256_hex(plain),
        created_by=operator or make_operator(),
        expires_at=now + timedelta(seconds=ttl_s),
        **fields,
    )
    return token, plain


# --- work -----------------------------------------------------------------------------------------


def make_group(
    tenant: Tenant | None = None,
    created_by: User | None = None,
    *,
    name: str = "",
    state: State = State.PENDING,
    now: datetime = NOW,
    **fields: Any,
) -> TaskGroup:
    """A task group without tasks (an inference service where nothing else is said)."""
    tenant = tenant or make_tenant()
    fields.setdefault("model_name", "tiny-model")
    fields.setdefault("task_type", TaskType.INFERENCE)
    fields.setdefault("parallelism", Parallelism.SINGLE)
    return TaskGroup.objects.create(
        tenant=tenant,
        created_by=created_by or make_member(tenant),
        name=name or unique("service"),
        state=state,
        state_since=now,
        created_at=now,
        **fields,
    )


def make_task(
    group: TaskGroup | None = None,
    *,
    rank: int | None = None,
    state: State = State.PENDING,
    now: datetime = NOW,
    **fields: Any,
) -> Task:
    """A task of a group; its rank is the next free one."""
    group = group or make_group()
    if rank is None:
        rank = group.tasks.filter(generation=fields.get("generation", 1)).count()
    fields.setdefault("name", f"{group.name}-{rank}")
    fields.setdefault("image", "ghcr.io/ggml-org/llama.cpp:server")
    fields.setdefault("engine", "llamacpp")
    fields.setdefault("model_path", "/models/tiny.gguf")
    return Task.objects.create(group=group, rank=rank, state=state, state_since=now, created_at=now, **fields)


def make_claim(
    task: Task,
    node: Node,
    *,
    cards: Sequence[Card] | None = None,
    percent: int | None = None,
    attempt: int | None = None,
    incarnation: str = "",
    now: datetime = NOW,
    **fields: Any,
) -> Claim:
    """The live claim of one attempt of a task; `cards` are the node's first ones where not named."""
    if attempt is None:
        attempt = max(task.attempt, 1)
    claim = Claim.objects.create(
        task=task,
        attempt=attempt,
        node=node,
        incarnation=incarnation,
        claimed_at=now if incarnation else None,
        created_at=now,
        **fields,
    )
    if cards is None:
        cards = list(node.cards.order_by("index")[: task.gpu_required])
    for card in cards:
        CardClaim.objects.create(claim=claim, card=card, percent=percent)
    return claim
