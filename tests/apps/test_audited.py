"""Every address that changes something leaves a row in the audit trail (TEN-08).

Walks the URL table: a changing method that is neither exercised here nor named as changing nothing fails.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from agent.contract.states import State
from apps.core import scopes, secrets
from apps.core.models import AuditEntry
from apps.tenants.models import OneTimeLink, SignedIn
from tests import factories
from tests.apps.strangers.estate import Estate
from tests.apps.strangers.table import Address, our_addresses

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-08")]

NEW = "quite-another-passphrase"
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
# By (method, template): what is sent. A callable gets the estate.
SENT: dict[tuple[str, str], Any] = {
    ("POST", "api/v1/auth/token"): lambda e: _sign_in(e),
    ("POST", "api/v1/auth/session"): lambda e: _sign_in(e),
    ("POST", "api/v1/auth/session/end"): lambda e: {},
    ("POST", "api/v1/auth/invitation"): lambda e: {"token": _token(e), "username": "n", "password": NEW},
    ("POST", "api/v1/auth/password-reset"): lambda e: {"token": _token(e, reset=True), "password": NEW},
    ("PATCH", "api/v1/me"): {"language": "en"},
    ("POST", "api/v1/me/password"): {"old_password": factories.PASSWORD, "password": NEW},
    ("DELETE", "api/v1/sessions/<str:session_id>"): {},
    ("POST", "api/v1/sessions/end-others"): {},
    ("POST", "api/v1/users/<str:user_id>/password-reset"): {},
    ("POST", "api/v1/tenants/<str:tenant_id>/invitations"): {"role": "member"},
    ("DELETE", "api/v1/tenants/<str:tenant_id>/invitations/<str:link_id>"): {},
    ("POST", "api/v1/tenants"): {"slug": "fresh"},
    ("PATCH", "api/v1/tenants/<str:tenant_id>"): {"name": "other"},
    ("POST", "api/v1/tenants/<str:tenant_id>/members"): lambda e: {
        "username": factories.make_user().username,
        "role": "member",
    },
    ("PATCH", "api/v1/tenants/<str:tenant_id>/members/<str:user_id>"): {"role": "admin"},
    ("DELETE", "api/v1/tenants/<str:tenant_id>/members/<str:user_id>"): {},
    ("POST", "api/v1/api-keys"): lambda e: {"name": "k", "tenant": e.rows["tenant"].slug},
    ("PATCH", "api/v1/api-keys/<str:key_id>"): {"name": "other"},
    ("DELETE", "api/v1/api-keys/<str:key_id>"): {},
    ("POST", "api/v1/api-keys/<str:key_id>/rotate"): {},
    ("POST", "api/v1/task-groups"): lambda e: {
        "tenant": e.rows["tenant"].slug,
        "name": "fresh",
        "task": {"image": "ghcr.io/ggml-org/llama.cpp:server", "model_path": "/m.gguf"},
    },
    ("DELETE", "api/v1/task-groups/<slug:group_id>"): {},
    ("POST", "api/v1/task-groups/<slug:group_id>/stop"): {},
    ("POST", "api/v1/task-groups/<slug:group_id>/start"): lambda e: _stopped(e),
    ("PUT", "api/v1/task-groups/<slug:group_id>/scale"): lambda e: _scalable(e),
    ("POST", "api/v1/tasks/<slug:task_id>/sleep"): lambda e: _in_state(e, State.RUNNING),
    ("POST", "api/v1/tasks/<slug:task_id>/wake"): lambda e: _in_state(e, State.SLEEPING),
    ("POST", "api/v1/tasks/<slug:task_id>/stop"): {},
    ("POST", "api/v1/file-requests"): lambda e: {
        "task_id": e.id_of("task"),
        "request_type": "list",
        "target_path": "/zebra/deep",
    },
    ("DELETE", "api/v1/file-requests/<str:request_id>"): {},
    ("POST", "api/v1/model-routes"): lambda e: {"group_id": e.id_of("group"), "model_name": "alias"},
    ("PUT", "api/v1/model-routes/<slug:route_id>"): {"weight": 7},
    ("DELETE", "api/v1/model-routes/<slug:route_id>"): {},
    ("POST", "api/v1/external-engines"): {"name": "far", "url": "https://93.184.216.34"},
    ("PUT", "api/v1/external-engines/<slug:engine_id>"): {"name": "other"},
    ("DELETE", "api/v1/external-engines/<slug:engine_id>"): {},
    ("PUT", "api/v1/gateway/endpoints/<slug:endpoint_id>"): {"name": "other"},
    ("DELETE", "api/v1/gateway/endpoints/<slug:endpoint_id>"): {},
    ("POST", "api/v1/models"): {"name": "fresh", "path": "/m", "image": "llama.cpp:server"},
    ("POST", "api/v1/join-tokens"): {},
    ("PATCH", "api/v1/nodes/<str:node_id>"): {"pool": "b"},
    ("DELETE", "api/v1/nodes/<str:node_id>"): {},
    ("POST", "api/v1/nodes/<str:node_id>/release-cards"): lambda e: _quarantined(e),
    ("POST", "api/v1/nodes/<str:node_id>/drain"): {},
    ("POST", "api/v1/nodes/<str:node_id>/maintenance"): {},
    ("POST", "api/v1/nodes/<str:node_id>/force"): lambda e: {**_drained(e), "after_seconds": 60},
    ("POST", "api/v1/nodes/<str:node_id>/resume"): lambda e: _drained(e),
    # the portal's pages
    ("POST", "sign-in/"): lambda e: _sign_in(e),
    ("POST", "sign-out/"): {},
    ("POST", "services/new/"): lambda e: {
        "tenant": e.rows["tenant"].slug,
        "name": "fresh",
        "model_path": "/m.gguf",
        "image": "ghcr.io/ggml-org/llama.cpp:server",
        "gpu_required": "0",
    },
    ("POST", "services/<str:group_id>/stop/"): {},
    ("POST", "services/<str:group_id>/start/"): lambda e: _stopped(e),
    ("POST", "services/<str:group_id>/sleep/"): lambda e: _in_state(e, State.RUNNING),
    ("POST", "services/<str:group_id>/wake/"): lambda e: _in_state(e, State.SLEEPING),
    ("POST", "services/<str:group_id>/scale/"): lambda e: _scalable(e),
    ("POST", "services/<str:group_id>/delete/"): {},
    ("POST", "keys/"): {"name": "k"},
    ("POST", "keys/<str:key_id>/"): {"name": "other"},
    ("POST", "keys/<str:key_id>/rotate/"): {},
    ("POST", "keys/<str:key_id>/revoke/"): {},
    ("POST", "playground/key/"): lambda e: {"tenant": e.rows["tenant"].slug},
    ("POST", "account/profile/"): {"language": "en", "time_zone": ""},
    ("POST", "account/password/"): {"old_password": factories.PASSWORD, "password": NEW},
    ("POST", "account/sessions/<str:session_id>/end/"): {},
    ("POST", "account/sessions/end-others/"): {},
    ("POST", "members/"): {"role": "member"},
    ("POST", "members/<str:user_id>/role/"): {"role": "admin"},
    ("POST", "members/<str:user_id>/remove/"): {},
    ("POST", "members/<str:user_id>/new-password/"): {},
    ("POST", "invitations/<str:link_id>/withdraw/"): {},
    ("POST", "join/"): lambda e: {"token": _token(e), "username": "n", "password": NEW},
    ("POST", "new-password/"): lambda e: {"token": _token(e, reset=True), "password": NEW},
}
# Acts of nobody: a token for a token. Alerts, webhooks and agents are proven with their own app.
CHANGES_NOTHING = {("POST", "api/v1/auth/token/refresh")}
ELSEWHERE = ("api/v1/alerts", "api/v1/webhooks", "agent/")
# Who acts, where the estate's owner may not or must not be the one.
BY_OPERATOR = (
    "api/v1/external-engines",
    "api/v1/join-tokens",
    "api/v1/models",
    "api/v1/nodes",
    "api/v1/tenants",
    "api/v1/users",
)
BY_NOBODY = ("api/v1/auth/", "join/", "new-password/", "sign-in/")


def _sign_in(estate: Estate) -> dict[str, str]:
    return {"username": estate.owner.username, "password": factories.PASSWORD}


def _token(estate: Estate, *, reset: bool = False) -> str:
    link = factories.make_invitation(estate.rows["tenant"], sha256=secrets.sha256_hex("the-token"))
    if reset:
        maker = factories.make_operator()
        OneTimeLink.objects.filter(pk=link.pk).update(
            purpose="reset", tenant=None, user=estate.owner, created_by=maker
        )
    return "the-token"


def _stopped(estate: Estate) -> dict[str, str]:
    task = estate.rows["task"]
    type(task).objects.filter(pk=task.pk).update(state=State.STOPPED)
    return {}


def _in_state(estate: Estate, state: State) -> dict[str, str]:
    task = estate.rows["task"]
    type(task).objects.filter(pk=task.pk).update(state=state)
    return {}


def _scalable(estate: Estate) -> dict[str, int]:
    group = estate.rows["group"]
    type(group).objects.filter(pk=group.pk).update(max_replicas=3)
    return {"replicas": 3}


def _drained(estate: Estate) -> dict[str, str]:
    node = estate.rows["node"]
    type(node).objects.filter(pk=node.pk).update(duty="drain", cordoned=True)
    return {}


def _quarantined(estate: Estate) -> dict[str, str]:
    estate.rows["node"].cards.update(quarantined_at=factories.NOW)
    return {}


def changing() -> list[tuple[str, Address]]:
    """(method, address) of each way that people change something."""
    found = []
    user = factories.make_user()
    for address in our_addresses():
        if address.scope == scopes.NODE or str(address).startswith(ELSEWHERE):
            continue
        if address.is_api:
            view = getattr(address.view, "cls", None) or getattr(address.view, "view_class", None)
            found += [(method, address) for method in CHANGING if hasattr(view, method.lower())]
        else:
            person = Client(raise_request_exception=False)  # anew each time: one of them signs out
            person.force_login(user)
            if person.post(address.fill(["x"] * 3)).status_code != 405:
                found.append(("POST", address))
    return found


def test_every_changing_address_is_exercised_or_named() -> None:
    here = {(method, str(address)) for method, address in changing()}
    left = here - set(SENT) - CHANGES_NOTHING
    assert not left, f"say in SENT what is sent to: {sorted(left)}"
    assert set(SENT) <= here, f"not there any more: {sorted(set(SENT) - here)}"


@pytest.mark.parametrize(("method", "template"), sorted(SENT), ids=lambda part: str(part))
def test_what_is_changed_is_on_record(method: str, template: str, operator: Any) -> None:
    estate = Estate()
    address = next(a for a in our_addresses() if str(a) == template)
    if method == "DELETE" and template.startswith("api/v1/nodes"):
        type(estate.claim).objects.filter(pk=estate.claim.pk).update(released_at=factories.NOW)
    if "members/<" in template:  # the owner can't be the last one that is turned
        factories.make_member(estate.rows["tenant"], "owner")
    sent: Any = SENT[method, template]
    body = sent(estate) if isinstance(sent, Callable) else sent  # type: ignore[arg-type]
    answer = _ask(estate, operator, method, address, template, body)
    assert answer.status_code < 400, f"{method} {template}: {answer.status_code} {answer.content[:300]}"
    row = AuditEntry.objects.first()
    assert row is not None, f"{method} {template} leaves no row"
    assert row.actor and row.object_kind and row.request_id != "-" and row.address == "127.0.0.1"
    for secret in (NEW, factories.PASSWORD, "the-token"):
        assert secret not in str(list(AuditEntry.objects.values()))


def _ask(estate: Estate, operator: Any, method: str, address: Address, template: str, body: Any) -> Any:
    path = address.fill([estate.id_of(kind) for kind in address.kinds])
    by_operator = template.startswith(BY_OPERATOR)
    user = operator if by_operator else estate.owner
    if template == "api/v1/auth/session/end":
        client = APIClient()
        tokens = client.post("/api/v1/auth/token", _sign_in(estate), format="json").json()
        return client.post(path, HTTP_AUTHORIZATION=f"Bearer {tokens['access']}")
    nobody = template.startswith(BY_NOBODY)
    if "end-others" in template:
        SignedIn.objects.filter(user=user).update(ended_at=None)
    if address.is_api:
        client = APIClient()
        if not nobody:
            client.force_authenticate(user)
        return getattr(client, method.lower())(path, body, format="json")
    page = Client()
    if not nobody:
        page.force_login(user)
    return page.post(path, body)
