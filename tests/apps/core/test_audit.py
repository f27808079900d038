"""The audit trail's own rules: with its act or not at all, added to and never changed, without secrets."""

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from apps.core import audit
from apps.core.models import AppendOnly, AuditEntry
from apps.core.requests import client_address, request_id
from tests.apps.core.threads import run_at_once

pytestmark = pytest.mark.req("TEN-08")

ANN = audit.Someone("ann", "usr-" + "a" * 16)


def note(**more):
    with transaction.atomic():
        audit.note(ANN, "change_node", kind="node", public_id="node-1", name="gpu-1", **more)
    return AuditEntry.objects.first()


@pytest.mark.django_db
def test_a_row_says_who_what_where_and_what_changed():
    token, address = request_id.set("req-12345678"), client_address.set("192.0.2.7")
    try:
        row = note(before={"pool": "a"}, after={"pool": "b"}, tenant=audit.Tenancy("ten-1", "lab"))
    finally:
        request_id.reset(token)
        client_address.reset(address)
    assert (row.actor, row.actor_id, row.by_operator) == ("ann", ANN.public_id, False)
    assert (row.object_kind, row.object_id, row.object_name) == ("node", "node-1", "gpu-1")
    assert (row.tenant_id, row.tenant) == ("ten-1", "lab")
    assert (row.address, row.request_id) == ("192.0.2.7", "req-12345678")
    assert (row.before, row.after) == ({"pool": "a"}, {"pool": "b"})


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_nothing_is_noted():
    with pytest.raises(transaction.TransactionManagementError):
        audit.note(ANN, "change_node", kind="node")
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_act_that_is_rolled_back_leaves_no_row():
    with pytest.raises(RuntimeError), transaction.atomic():
        audit.note(ANN, "change_node", kind="node")
        raise RuntimeError
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_a_row_can_be_neither_changed_nor_removed():
    row = note()
    row.actor = "bob"
    for attempt in (
        row.save,
        row.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.update(actor="bob"),
    ):
        with pytest.raises(AppendOnly):
            attempt()
    assert AuditEntry.objects.get().actor == "ann"


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "new_password",
        "secret_sha256",
        "sha256",
        "env",
        "pull_credentials",
        "token",
        "session_key",
    ],
)
def test_secret_fields_are_hidden_at_any_depth(name):
    shown = audit.clean(
        {name: "hush-hush", "task": {name: {"A": "hush-hush"}}, "list": [{name: "hush-hush"}]}
    )
    assert "hush-hush" not in str(shown)
    assert shown[name] == audit.HIDDEN


def test_what_looks_like_a_credential_is_masked_in_any_text():
    key = "sk-0b2cf6a5-4b6f-4f0e-8a53-0a4d0f2b7c11"
    assert key not in str(audit.clean({"name": f"with {key}", "list": [key]}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.django_db
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_values_are_kept_and_read_back(values):
    kept = note(after=values).after
    assert kept == audit.clean(values)


def test_changes_name_only_what_differs():
    assert audit.changes({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == (
        {"b": 2, "c": None},
        {"b": 3, "c": 4},
    )


@pytest.mark.django_db(transaction=True)
def test_two_at_once_leave_two_rows():
    def act(number):
        with transaction.atomic():
            audit.note(ANN, "change_node", kind="node", public_id=f"node-{number}")

    run_at_once(2, act)
    assert sorted(AuditEntry.objects.values_list("object_id", flat=True)) == ["node-0", "node-1"]
