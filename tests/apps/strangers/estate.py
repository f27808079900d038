"""One of everything that a tenant can own, each with a name that stands nowhere else."""

from typing import Any

from agent.contract.states import State
from apps.core import ids
from apps.core.clock import utc_now
from apps.files.models import FileRequest
from apps.routing.models import ExternalEngine, InferenceEndpoint, ModelRoute
from apps.tenants.models import Role
from apps.usage.models import UsageRecord, UsageTotal
from apps.usage.sums import bounds
from apps.workloads.models import Event
from tests import factories

MARK = "zebra"


class Estate:
    """Tenant A: its rows by kind, what would betray them, and a picture of them as they are."""

    def __init__(self) -> None:
        tenant = factories.make_tenant(f"{MARK}-lab")
        self.owner = factories.make_member(tenant, Role.OWNER, username=f"{MARK}-owner")
        key, _ = factories.make_key(tenant, self.owner, name=f"{MARK}-key")
        node = factories.make_node(f"{MARK}-node", allowed_tenants=[tenant], secret="a-secret")
        group = factories.make_group(
            tenant, self.owner, name=f"{MARK}-service", model_name=f"{MARK}-model", state=State.RUNNING
        )
        task = factories.make_task(
            group, state=State.RUNNING, name=f"{MARK}-task", node=node, attempt=1, model_path=f"/{MARK}"
        )
        self.claim = factories.make_claim(task, node, incarnation="run-1")
        route = ModelRoute.objects.create(tenant=tenant, model_name=f"{MARK}-model", group=group)
        external = ExternalEngine.objects.create(name=f"{MARK}-far", url=f"https://{MARK}.example")
        endpoint = InferenceEndpoint.objects.create(
            tenant=tenant,
            created_by=self.owner,
            name=f"{MARK}-door",
            group=group,
            port=8000,
            api_key=key,
        )
        Event.objects.create(
            group=group, task=task, code="created", actor=self.owner.username, at=factories.NOW
        )
        fetched = FileRequest.objects.create(
            task=task,
            node=node,
            created_by=self.owner,
            kind="download",
            path=f"/{MARK}/weights",
            status="ready",
            size=0,
            sha256="0" * 64,
            created_at=factories.NOW,
            touched_at=factories.NOW,
            expires_at=factories.NOW,
        )
        used = {
            "tenant_id": tenant.public_id,
            "tenant_slug": tenant.slug,
            "member": self.owner.username,
            "key_id": key.public_id,
            "model": f"{MARK}-model",
            "group_id": group.public_id,
        }
        now = utc_now()
        call = {"request_id": f"{MARK}-call", "path": "/v1/x", "ending": "completed", "http_status": 200}
        UsageRecord.objects.create(started_at=now, **call, **used)
        UsageTotal.objects.create(span="day", began_at=bounds(now.date(), now.date())[0], requests=1, **used)
        session = factories.make_session(self.owner)
        link = factories.make_invitation(tenant, self.owner)
        self.rows: dict[str, Any] = {
            "session": session,
            "link": link,
            "tenant": tenant,
            "user": self.owner,
            "key": key,
            "node": node,
            "group": group,
            "task": task,
            "route": route,
            "external": external,
            "endpoint": endpoint,
            "file": fetched,
        }

    def id_of(self, kind: str) -> str:
        return str(self.rows[kind].public_id)

    def betrayed_by(self, text: str, sent: list[str]) -> list[str]:
        """What of this estate stands in an answer, other than what the caller sent."""
        telling = [self.id_of(kind) for kind in self.rows] + [MARK]
        for known in sent:
            text = text.replace(known, "")
        return [word for word in telling if word in text]

    def picture(self) -> dict[str, Any]:
        """Every column of every row, to see that nothing moved."""
        rows = {**self.rows, "claim": self.claim}
        seen = {kind: type(row).objects.filter(pk=row.pk).values().first() for kind, row in rows.items()}
        for volatile in ("last_login",):
            (seen["user"] or {}).pop(volatile, None)
        return seen


def nobodys_id(kind: str) -> str:
    """An id of the right shape that no row has."""
    return ids.new_id("file_request" if kind == "file" else kind)
