"""A stranger at every address (TEN-04): another tenant's things are not there, whoever asks, however.

Walks the URL table by itself. For each address with ids the answer about another tenant's object must be
the one about an object that does not exist: status, body, and the number of statements behind it.
"""

import json
import re

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from agent.contract.messages import CONTRACT_HEADER, CONTRACT_VERSION
from apps.core import scopes
from apps.tenants.models import Role
from tests import factories
from tests.apps.strangers.estate import MARK, Estate, nobodys_id
from tests.apps.strangers.table import Address, console_addresses, our_addresses

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-04")]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ADDRESSES = our_addresses()
OF_PEOPLE = [a for a in ADDRESSES if a.scope not in (scopes.NODE, scopes.METRICS)]
WITH_IDS = [a for a in OF_PEOPLE if "<" in a.template]
WITHOUT_IDS = [a for a in OF_PEOPLE if "<" not in a.template]
OF_NODES = [a for a in ADDRESSES if a.scope == scopes.NODE]


@pytest.fixture
def estate():
    return Estate()


@pytest.fixture
def strangers():
    """People who have nothing to do with the estate, and nobody."""
    other = factories.make_tenant("other-lab")
    # One who reads all of a tenant, one who reads their own; admins and viewers filter as owners do.
    found = {f"{role} elsewhere": factories.make_member(other, role) for role in (Role.OWNER, Role.MEMBER)}
    return {**found, "without tenant": factories.make_user(), "anonymous": None}


def client_for(address: Address, user):
    if address.is_api:
        client = APIClient(raise_request_exception=False)
        if user is not None:
            client.force_authenticate(user)
        return client
    client = Client(raise_request_exception=False)
    if user is not None:
        client.force_login(user)
    return client


def ask(address: Address, user, method: str, ids: list[str], query: str = ""):
    """The answer, and how many statements it took."""
    client = client_for(address, user)
    with CaptureQueriesContext(connection) as seen:
        answer = client.generic(method, address.fill(ids) + query, "{}", content_type="application/json")
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return answer, body.decode(), len(seen)


def plain(text: str, sent: list[str]) -> str:
    """A body without what differs between any two requests."""
    for known in sorted(sent, key=len, reverse=True):
        text = text.replace(known, "ID")
    text = re.sub(r'"request_id": ?"[^"]*"', "", text)
    return re.sub(r"\b[A-Za-z0-9]{64}\b", "", text)  # a page's CSRF token


def by_template(addresses):
    return pytest.mark.parametrize("address", addresses, ids=str)


def test_every_address_says_for_whom_it_is():
    silent = [str(a) for a in ADDRESSES if a.scope not in scopes.SCOPES]
    assert not silent, f"declare a scope (apps/core/scopes.py) on the views of: {silent}"


def test_the_walk_knows_what_every_id_stands_for():
    unknown = []
    for address in WITH_IDS:
        try:
            assert address.kinds
        except KeyError:
            unknown.append(str(address))
    assert not unknown, f"add to KINDS in tests/apps/strangers/table.py what the ids stand for: {unknown}"


def test_the_walk_walks():
    templates = {str(a) for a in ADDRESSES}
    assert {"api/v1/api-keys", "api/v1/nodes/<str:node_id>"} <= templates
    assert len(WITH_IDS) >= 10 and console_addresses()


@by_template(WITH_IDS)
def test_anothers_object_is_not_there(address, estate, strangers):
    theirs = [estate.id_of(kind) for kind in address.kinds]
    before, nobodys = estate.picture(), set()
    for who, user in strangers.items():
        for method in METHODS:
            if method in nobodys:
                continue
            nowhere = [nobodys_id(kind) for kind in address.kinds]
            told, told_body, told_cost = ask(address, user, method, nowhere)
            answer, body, cost = ask(address, user, method, theirs)
            said = f"{who}: {method} {address}: {answer.status_code} {body[:300]}"
            assert answer.status_code in allowed(address, user), said
            assert answer.status_code == told.status_code, said
            assert plain(body, theirs) == plain(told_body, nowhere), said
            assert answer.headers.get("Content-Type") == told.headers.get("Content-Type"), said
            assert cost == told_cost, f"{said}: {cost} statements, {told_cost} for an id of nobody"
            assert not estate.betrayed_by(body, theirs), said
            if answer.status_code == 405:  # the address has no such method for anybody: once is enough
                nobodys.add(method)
    assert estate.picture() == before


def allowed(address: Address, user) -> set[int]:
    """404 for what is not there, 405 for methods that nobody has; 401 or the sign-in page for nobody,
    403 where the address is for operators alone."""
    if user is None:
        return {401, 405} if address.is_api else {302, 405}
    return {403, 405} if address.scope == scopes.OPERATOR else {404, 405}


@by_template([a for a in WITH_IDS if len(re.findall("<", a.template)) > 1])
def test_anothers_object_is_not_found_under_ones_own_either(address, estate, strangers):
    own = Estate.__new__(Estate)
    owner = strangers[f"{Role.OWNER} elsewhere"]
    own.rows = {"tenant": owner.memberships.get().tenant, "user": owner}
    first, *rest = address.kinds
    for method in METHODS:
        theirs = [own.id_of(first), *(estate.id_of(kind) for kind in rest)]
        nowhere = [own.id_of(first), *(nobodys_id(kind) for kind in rest)]
        answer, body, cost = ask(address, owner, method, theirs)
        _, told_body, told_cost = ask(address, owner, method, nowhere)
        assert answer.status_code in (404, 405)
        assert (plain(body, theirs), cost) == (plain(told_body, nowhere), told_cost)


@by_template(WITH_IDS)
def test_its_own_people_do_find_it(address, estate, operator):
    """Else the walk would pass for an address that answers 404 to everybody."""
    ids = [estate.id_of(kind) for kind in address.kinds]
    own = [operator] if address.scope == scopes.OPERATOR else [estate.owner, operator]
    for user in own:
        found = set()
        for method in METHODS:
            with transaction.atomic():
                found.add(ask(address, user, method, ids)[0].status_code)
                transaction.set_rollback(True)
        assert found - {401, 403, 404, 405}, f"{address} finds nothing for {user}: {found}"
        assert not {status for status in found if status >= 500}


@by_template(WITHOUT_IDS)
def test_no_list_and_no_page_shows_anothers_things(address, estate, strangers):
    before, nobodys = estate.picture(), set()
    for who, user in strangers.items():
        for method in METHODS:
            if method in nobodys:
                continue
            answer, body, _ = ask(address, user, method, [])
            said = f"{who}: {method} {address}: {answer.status_code} {body[:300]}"
            assert answer.status_code < 500 or str(address).startswith("readyz"), said
            assert not estate.betrayed_by(body + str(answer.headers), []), said
            if user is None and address.scope != scopes.PUBLIC:
                assert answer.status_code in ({401, 405} if address.is_api else {302, 405}), said
            if user is not None and address.scope == scopes.OPERATOR:
                assert answer.status_code in (403, 405), said
            if answer.status_code == 405:
                nobodys.add(method)
    assert estate.picture() == before


QUERIES = (
    "tenant={tenant}&group={group}&task={task}&tenant_id={tenant_id}&search={mark}&q={mark}",
    # The route test, usage's sums and exports; of pages only usage's own take more than the first.
    "model={mark}-model&backend={task}&version=v1",
    "model={mark}-model&key={key}",
    "tenant={tenant}&model={mark}-model",
    "member={mark}-owner&model={mark}-model&by=key",
)


@by_template([a for a in WITHOUT_IDS if a.scope == scopes.TENANT])
def test_naming_anothers_things_in_a_query_shows_no_more(address, estate, strangers):
    kinds = ("group", "task", "key")
    slug = estate.rows["tenant"].slug
    theirs = {"tenant": slug, "tenant_id": estate.id_of("tenant"), "mark": MARK}
    theirs |= {kind: estate.id_of(kind) for kind in kinds}
    nobodys = {"tenant": "lions-lab", "tenant_id": nobodys_id("tenant"), "mark": "lions"}
    nobodys |= {kind: nobodys_id(kind) for kind in kinds}
    asked = [(user, QUERIES[0]) for user in strangers.values() if user is not None]
    if address.is_api or "usage" in str(address):
        asked += [(strangers["owner elsewhere"], query) for query in QUERIES[1:]]
    for user, query in asked:
        answer, body, _ = ask(address, user, "GET", [], "?" + query.format(**theirs))
        told, told_body, _ = ask(address, user, "GET", [], "?" + query.format(**nobodys))
        assert answer.status_code == told.status_code < 500
        assert plain(body, list(theirs.values())) == plain(told_body, list(nobodys.values()))


# What another node sends about a task that it does not hold, by address; {task} is the task's id.
FROM_NODES = {
    "agent-join": {
        "type": "join",
        "token": "jt-not-a-token",
        "secret_sha256": "0" * 64,
        "machine_id": "m",
        "hostname": "h",
        "agent_version": "1",
    },
    "agent-heartbeat": {
        "type": "heartbeat",
        "incarnation": "run-9",
        "started_at": 9e9,
        "sequence": 1,
        "desired_hash": "",
        "sent_at": 0.0,
        "machine_id": "machine-of-other-node",
        "runtime": "docker",
        "host": {"cpu_count": 1, "memory_total_mb": 1},
        "dial": {"kind": "direct", "host": "127.0.0.1"},
        "running": [{"task_id": "{task}", "attempt": 1, "observed": "ready"}],
    },
    "agent-claims": {"type": "claim", "incarnation": "run-1", "task_id": "{task}", "attempt": 1},
    "agent-reports": {
        "type": "reports",
        "incarnation": "run-1",
        "reports": [
            {"sequence": 1, "task_id": "{task}", "attempt": 1, "phase": "leaving", "observed": "gone"}
        ],
    },
    "agent-file-answers": {"type": "file", "incarnation": "run-1", "request_id": "{task}"},
    "agent-files": {},  # its address says which; another node's is `tests/apps/files`' matter
    "agent-logs": {
        "type": "log",
        "incarnation": "run-1",
        "task_id": "{task}",
        "attempt": 1,
        "offset": 0,
        "text": "x",
    },
}


def test_every_address_of_nodes_is_walked_too():
    missing = {a.name for a in OF_NODES} - set(FROM_NODES)
    assert not missing, f"add to FROM_NODES what another node would send to: {missing}"


@pytest.mark.req("AGENT-02")
@by_template(OF_NODES)
def test_another_node_learns_and_changes_nothing(address, estate, strangers):
    other = factories.make_node("other-node", secret="other-secret")
    headers = {
        "HTTP_AUTHORIZATION": f"Bearer {other.public_id}:other-secret",
        f"HTTP_{CONTRACT_HEADER.upper().replace('-', '_')}": str(CONTRACT_VERSION),
    }
    before, answers = estate.picture(), []
    for task in (estate.id_of("task"), nobodys_id("task")):
        body = json.dumps(FROM_NODES[address.name]).replace("{task}", task)
        with transaction.atomic():
            answer = Client(raise_request_exception=False).post(
                address.fill([]), body, content_type="application/json", **headers
            )
            assert not estate.betrayed_by(answer.content.decode(), [task])
            assert estate.picture() == before
            transaction.set_rollback(True)
        answers.append((answer.status_code, plain(answer.content.decode(), [task])))
    assert answers[0] == answers[1]
    if address.name in ("agent-claims", "agent-reports", "agent-logs", "agent-file-answers"):
        assert answers[0][0] == 403 and '"not_this_nodes"' in answers[0][1], answers


@by_template([a for a in OF_NODES if a.name != "agent-join"])
def test_people_and_other_secrets_do_not_pass_for_a_node(address, estate, strangers):
    node, user = estate.rows["node"], strangers["owner elsewhere"]
    other = factories.make_node(secret="other-secret")
    contract = {f"HTTP_{CONTRACT_HEADER.upper().replace('-', '_')}": str(CONTRACT_VERSION)}
    body = json.dumps(FROM_NODES[address.name])
    before, bodies = estate.picture(), {401: set(), 403: set()}
    for status, credential in (
        (401, None),
        (401, "Bearer x"),
        (401, f"Bearer {node.public_id}:no-secret"),
        (401, f"Bearer {nobodys_id('node')}:no-secret"),
        # a node's own secret, but under the id of another or of none
        (403, f"Bearer {node.public_id}:other-secret"),
        (403, f"Bearer {nobodys_id('node')}:other-secret"),
        (403, f"Bearer {other.public_id}:a-secret"),
    ):
        client = Client(raise_request_exception=False)
        client.force_login(user)
        sent = {**contract, **({"HTTP_AUTHORIZATION": credential} if credential else {})}
        answer = client.post(address.fill([]), body, content_type="application/json", **sent)
        assert answer.status_code == status, answer.content
        bodies[status].add(plain(answer.content.decode(), []))
    assert [len(found) for found in bodies.values()] == [1, 1] and estate.picture() == before


def test_a_nodes_secret_opens_nothing_of_people(estate):
    node = estate.rows["node"]
    for address in OF_PEOPLE:
        if address.is_api and address.scope != scopes.PUBLIC:
            ids = [estate.id_of(kind) for kind in address.kinds]
            answer = APIClient(raise_request_exception=False).get(
                address.fill(ids), HTTP_AUTHORIZATION=f"Bearer {node.public_id}:a-secret"
            )
            assert answer.status_code == 401, str(address)


def test_the_console_is_closed_to_who_is_no_staff(estate, strangers):
    public = {"login", "logout", "jsi18n"}
    for who in ("anonymous", "owner elsewhere"):
        client = Client(raise_request_exception=False)
        if strangers[who] is not None:
            client.force_login(strangers[who])
        for address in console_addresses():
            if address.name in public or "(?P" in address.template:
                continue
            path = "/" + re.sub(r"<[^>]+>", "1", address.template)
            answer = client.get(path)
            assert answer.status_code in (302, 403, 404, 405), f"{who}: {path}: {answer.status_code}"
            assert not estate.betrayed_by(answer.content.decode(), [])


@pytest.mark.req("OPS-04")
def test_metrics_are_for_who_scrapes(strangers, operator):
    (address,) = [a for a in ADDRESSES if a.scope == scopes.METRICS]
    for user in (*strangers.values(), operator):
        for method in METHODS:
            assert ask(address, user, method, [])[0].status_code in (401, 405)
