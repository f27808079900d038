"""Who may ask for which files, and how long and how much of them stays (AGENT-12)."""

from datetime import timedelta

import pytest

from apps.core.clock import utc_now
from apps.core.models import AuditEntry
from apps.files import services
from apps.files.models import FilePiece, FileRequest
from apps.tenants.models import Role
from apps.tenants.scope import viewer_of
from tests import factories
from tests.apps.files.conftest import CONTENT, content, send_all, stored

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-12")]


@pytest.fixture(autouse=True)
def small_chunks(settings):
    settings.FILE_CHUNK_BYTES = 1000


# --- asking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/data/mine-evil/x",
        "/data/mine/../theirs/x",
        "/etc/shadow",
        "/data",
        "data/mine/x",
        "mine",
        "/data/mine/%2e%2e/../../theirs",
        "/data/mine/" + "x" * 300,
        "/data/mine/" + "x/" * 2048,
    ],
)
def test_outside_of_the_mounts_is_refused_by_its_text(api_client, member, task, path):
    body = {"task_id": task.public_id, "request_type": "download", "target_path": path}
    answer = api_client(member).post("/api/v1/file-requests", body)
    (error,) = answer.json()["errors"]
    assert answer.status_code == 400 and (error["field"], error["code"]) == (
        "target_path",
        "path_not_mounted",
    )
    assert "/data/mine" in str(error) and not FileRequest.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("target_path", "/data/mine/\0", "bad_characters"),
        ("target_path", "/data/mine/\n", "bad_characters"),
        ("target_path", None, "required"),
        ("target_path", ["x"], "wrong_type"),
        ("request_type", "delete", "not_a_choice"),
        ("request_type", None, "required"),
        ("task_id", "", "blank"),
        ("more", 1, "unknown_field"),
    ],
)
def test_a_wrong_field_is_named(api_client, member, task, field, value, code):
    body = {"task_id": task.public_id, "request_type": "list", "target_path": "/data/mine", field: value}
    answer = api_client(member).post("/api/v1/file-requests", body)
    assert answer.status_code == 400, answer.json()
    assert [(error["field"], error["code"]) for error in answer.json()["errors"]] == [(field, code)]


def test_a_relative_models_folder_is_judged_by_the_node(task, ask, agent):
    task.model_path, task.volumes = "tiny", []
    task.save()
    ask("/data/models/tiny/config.json")
    (order,) = agent.orders()
    assert (order.path, order.model_path, order.volumes) == ("/data/models/tiny/config.json", "tiny", [])


def test_a_task_that_ended_is_asked_at_its_last_node(task, ask, agent):
    task.state, task.node = "stopped", None
    task.save()
    task.claims.update(released_at=factories.NOW)
    ask()
    assert len(agent.orders()) == 1


def test_a_task_that_was_never_placed_has_no_files(api_client, member, task):
    task.claims.all().delete()
    body = {"task_id": task.public_id, "request_type": "list", "target_path": "/data/mine"}
    answer = api_client(member).post("/api/v1/file-requests", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "file_no_node")


def test_roles(api_client, tenant, member, task, ask, agent):
    """A viewer reads what was fetched, and fetches nothing; a member sees their own alone."""
    wanted = ask()
    send_all(agent, wanted)
    viewer = factories.make_member(tenant, Role.VIEWER)
    body = {"task_id": task.public_id, "request_type": "list", "target_path": "/data/mine"}
    reads = api_client(viewer)
    assert reads.post("/api/v1/file-requests", body).status_code == 403
    assert reads.delete(f"/api/v1/file-requests/{wanted}").status_code == 403
    assert content(reads, wanted)[1] == CONTENT
    colleague = api_client(factories.make_member(tenant))
    refused = colleague.post("/api/v1/file-requests", body)
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"], error["value"]) == (404, "task_id", task.public_id)
    assert content(colleague, wanted)[0].status_code == 404
    assert colleague.get("/api/v1/file-requests").json()["total"] == 0
    admin = api_client(factories.make_member(tenant, Role.ADMIN))
    assert admin.post("/api/v1/file-requests", body).status_code == 202
    assert admin.delete(f"/api/v1/file-requests/{wanted}").status_code == 204


def test_who_asked_for_what_is_on_record(ask, task):
    wanted = ask()
    entry = AuditEntry.objects.first()
    assert (entry.verb, entry.object_id) == ("request_file", wanted)
    assert entry.after == {"kind": "download", "path": "/data/mine/züge.csv"}
    assert entry.tenant_id == task.group.tenant.public_id


# --- limits and age -------------------------------------------------------------------------------


def test_a_tenant_has_so_much_room(settings, agent, ask, row, store, tenant):
    settings.FILE_TENANT_BYTES = 3000
    first, second = ask(), ask()
    assert send_all(agent, first).done
    assert agent.piece(second, b"x" * 441, size=441).code == "file_closed"
    told = row(second)
    assert (told.status, told.reason_code) == ("failed", "file_quota")
    third = ask()
    assert agent.piece(third, b"x" * 440).done
    fourth = ask()
    services.delete_request(actor=viewer_of(row(first).created_by), row=row(first))
    assert send_all(agent, fourth).done


def test_only_so_many_wait_at_once(settings, api_client, member, task, ask, agent):
    settings.FILE_REQUESTS_OPEN = 2
    first = ask()
    ask()
    body = {"task_id": task.public_id, "request_type": "list", "target_path": "/data/mine"}
    answer = api_client(member).post("/api/v1/file-requests", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "file_requests_open")
    send_all(agent, first)
    ask()


def test_a_silent_nodes_request_fails_and_an_old_one_goes(settings, agent, ask, row, store, lease):
    settings.FILE_WAIT_S, settings.FILE_KEEP_S = 600, 3600
    done, half = ask(), ask()
    send_all(agent, done)
    agent.piece(half, CONTENT[:1000], size=2560)
    now = utc_now()
    assert services.give_up_silent(lease=lease, now=now) == 0
    assert services.give_up_silent(lease=lease, now=now + timedelta(seconds=601)) == 1
    assert row(half).reason_code == "file_no_answer" and row(half).reason_params == {"after_s": 600}
    assert row(done).status == "ready" and len(stored(store)) == 3
    assert services.drop_expired(lease=lease, now=now + timedelta(seconds=3000)) == 0
    assert services.drop_expired(lease=lease, now=now + timedelta(seconds=3700)) == 2
    assert not FileRequest.objects.exists() and stored(store) == []


def test_bytes_of_deleted_tasks_go(agent, ask, task, store):
    send_all(agent, ask())
    assert services.drop_orphans() == 0
    task.group.delete()
    assert len(stored(store)) == 3
    assert services.drop_orphans() == 1 and stored(store) == []


def test_a_file_that_the_store_has_lost_is_said(api_client, member, agent, ask, store):
    wanted = ask()
    send_all(agent, wanted)
    stored(store)[0].unlink()
    answer, _ = content(api_client(member), wanted)
    assert (answer.status_code, answer.json()["code"]) == (410, "file_bytes_gone")


def test_a_file_on_its_way_is_not_given_out(api_client, member, agent, ask):
    wanted = ask()
    agent.piece(wanted, CONTENT[:1000], size=2560)
    answer, _ = content(api_client(member), wanted)
    assert (answer.status_code, answer.json()["code"]) == (409, "file_not_ready")


def test_a_piece_that_comes_while_its_request_is_deleted(agent, ask, row, store, monkeypatch):
    wanted, keep = ask(), services.store.keep

    def deleted_meanwhile(*args):
        name = keep(*args)
        services.delete_request(actor=viewer_of(row(wanted).created_by), row=row(wanted))
        return name

    monkeypatch.setattr(services.store, "keep", deleted_meanwhile)
    assert agent.piece(wanted, CONTENT[:1000], size=2560).code == "file_closed"
    assert stored(store) == [] and not FilePiece.objects.exists()
