"""Who may do what to a service, its tasks and their files: every role at every action (TEN-02), and every
action while the tenant is suspended (TEN-01).

Walks the URL table: a new action is asked of every role by itself, with what `test_audited` sends to it. What
a suspended tenant may still do has to be said here, and fails until it is.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from rest_framework.test import APIClient

from apps.core import scopes
from apps.tenants.models import Role, TenantStatus
from tests import factories
from tests.apps.strangers.estate import Estate
from tests.apps.strangers.table import Address, our_addresses
from tests.apps.test_audited import CHANGING, SENT

pytestmark = [pytest.mark.django_db]

OF_WORK = {"group", "task", "file"}
OPERATOR, OWNER, ADMIN, MAKER = "operator", "owner", "admin", "the member who made it"
COLLEAGUE, VIEWER = "another member", "viewer"
MAY_CHANGE, MAY_READ = {OPERATOR, OWNER, ADMIN, MAKER}, {OPERATOR, OWNER, ADMIN, MAKER, VIEWER}
NOT_THERE, NOT_YOURS = 404, 403

# While its tenant is suspended nothing new is to run; what ends, rests or is only read goes on (TEN-01). By
# the last part of the address; "" is the object itself.
REFUSED, WORKS = "refused", "works"
SUSPENDED: dict[tuple[str, str], str] = {
    ("POST", "start"): REFUSED,
    ("POST", "wake"): REFUSED,
    ("PUT", "scale"): REFUSED,
    ("POST", "scale"): REFUSED,  # on the pages
    ("POST", "sleep"): WORKS,
    ("POST", "stop"): WORKS,
    ("DELETE", ""): WORKS,
    ("POST", "delete"): WORKS,
    ("POST", "file-requests"): WORKS,
}


def is_of_work(address: Address) -> bool:
    if address.scope != scopes.TENANT:
        return False
    return bool(OF_WORK & set(address.kinds[:1])) if "<" in address.template else False


def methods_of(address: Address) -> list[str]:
    """The methods that an address takes: an API view's own, a page's as the audit's walk knows them."""
    if not address.is_api:
        return [method for method, template in SENT if template == str(address)]
    view = getattr(address.view, "cls", None) or address.view.view_class
    return [method for method in ("GET", *CHANGING) if hasattr(view, method.lower())]


WORK = [address for address in our_addresses() if is_of_work(address)]
ACTIONS = [(method, address) for address in WORK for method in methods_of(address)]
CHANGES = [(method, address) for method, address in ACTIONS if method in CHANGING]
(REQUESTS,) = [address for address in our_addresses() if str(address) == "api/v1/file-requests"]


def people_of(estate: Estate) -> dict[str, Any]:
    """One person of each role; the service was made by a plain member."""
    tenant, group = estate.rows["tenant"], estate.rows["group"]
    maker = factories.make_member(tenant, Role.MEMBER)
    group.created_by = maker
    group.save()
    key = estate.rows["key"]  # an endpoint's key is its service's maker's
    key.member = maker
    key.save()
    return {
        OPERATOR: factories.make_operator(),
        OWNER: estate.owner,
        ADMIN: factories.make_member(tenant, Role.ADMIN),
        MAKER: maker,
        COLLEAGUE: factories.make_member(tenant, Role.MEMBER),
        VIEWER: factories.make_member(tenant, Role.VIEWER),
    }


def ask(estate: Estate, address: Address, method: str, user: Any) -> Any:
    """The answer; nothing of it stays."""
    path = address.fill([estate.id_of(kind) for kind in address.kinds])
    with transaction.atomic():
        sent: Any = SENT.get((method, str(address)), {})
        body = sent(estate) if isinstance(sent, Callable) else sent  # type: ignore[arg-type]
        if address.is_api:
            client = APIClient(raise_request_exception=False)
            client.force_authenticate(user)
            answer = getattr(client, method.lower())(path, body, format="json")
        else:
            page = Client(raise_request_exception=False)
            page.force_login(user)
            answer = page.generic(method, path) if method == "GET" else page.post(path, body)
        if answer.streaming:
            answer.getvalue()
        transaction.set_rollback(True)
    return answer


def by_action(actions: list[tuple[str, Address]]) -> Any:
    return pytest.mark.parametrize(
        ("method", "address"), actions, ids=[f"{method} {address}" for method, address in actions]
    )


def test_the_matrix_has_its_actions() -> None:
    found = {(method, str(address)) for method, address in ACTIONS}
    assert {
        ("POST", "api/v1/task-groups/<slug:group_id>/stop"),
        ("GET", "api/v1/task-groups/<slug:group_id>/explain"),
        ("DELETE", "api/v1/task-groups/<slug:group_id>"),
        ("POST", "api/v1/tasks/<slug:task_id>/stop"),
        ("GET", "api/v1/tasks/<str:task_id>/logs"),
        ("GET", "api/v1/file-requests/<str:request_id>/content"),
        ("POST", "services/<str:group_id>/stop/"),
    } <= found


@pytest.mark.req("TEN-02")
@by_action(ACTIONS)
def test_every_role_at_every_action(method: str, address: Address) -> None:
    estate = Estate()
    people = people_of(estate)
    before = estate.picture()
    for role, user in people.items():
        changes = method in CHANGING
        answer = ask(estate, address, method, user)
        said = f"{role}: {method} {address}: {answer.status_code}"
        if role in (MAY_CHANGE if changes else MAY_READ):
            assert answer.status_code < 500 and answer.status_code not in (401, 403, 404, 405), said
        else:
            assert answer.status_code == (NOT_THERE if role == COLLEAGUE else NOT_YOURS), said
    assert estate.picture() == before


@pytest.mark.req("TEN-02")
def test_every_role_asks_for_files() -> None:
    estate = Estate()
    for role, user in people_of(estate).items():
        answer = ask(estate, REQUESTS, "POST", user)
        expected = 202 if role in MAY_CHANGE else NOT_THERE if role == COLLEAGUE else NOT_YOURS
        assert answer.status_code == expected, f"{role}: {answer.status_code} {answer.content!r}"


def last_part(address: Address) -> str:
    last = str(address).rstrip("/").rsplit("/", 1)[-1]
    return "" if "<" in last else last


@pytest.mark.req("TEN-01")
@by_action([*CHANGES, ("POST", REQUESTS)])
def test_what_a_suspended_tenant_may_still_do(method: str, address: Address) -> None:
    key = method, last_part(address)
    assert key in SUSPENDED, (
        f"say in SUSPENDED what becomes of {method} {address} while the tenant is suspended"
    )
    estate = Estate()
    tenant = estate.rows["tenant"]
    tenant.status, tenant.suspended_reason = TenantStatus.SUSPENDED, "unpaid"
    tenant.save()
    answer = ask(estate, address, method, estate.owner)
    said = f"{method} {address}: {answer.status_code} {answer.content[:300]!r}"
    if SUSPENDED[key] == WORKS:
        assert answer.status_code < 400, said
    elif address.is_api:
        assert answer.status_code == 403 and answer.json()["code"] == "tenant_suspended", said
        assert "unpaid" in answer.json()["detail"], said
    else:
        assert answer.status_code == 403 and "unpaid" in answer.content.decode(), said


@pytest.mark.req("TEN-01")
@by_action([(method, address) for method, address in ACTIONS if method not in CHANGING])
def test_a_suspended_tenants_things_stay_readable(method: str, address: Address) -> None:
    estate = Estate()
    type(estate.rows["tenant"]).objects.update(status=TenantStatus.SUSPENDED, suspended_reason="unpaid")
    assert ask(estate, address, method, estate.owner).status_code == 200
