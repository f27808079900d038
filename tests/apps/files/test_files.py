"""A file's way from a node to whoever asked for it (AGENT-12)."""

import base64
import hashlib

import pytest

from agent.contract import messages as m
from agent.contract.codes import Code, reason
from agent.contract.states import FileKind
from apps.files import services, store
from apps.files.models import FilePiece
from tests import factories
from tests.apps.files.conftest import CONTENT, content, send_all, stored

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-12")]

SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def small_chunks(settings):
    settings.FILE_CHUNK_BYTES = 1000


# --- the whole way --------------------------------------------------------------------------------


def test_a_file_comes_in_pieces_and_goes_out_whole(api_client, member, agent, ask, task):
    wanted = ask()
    (order,) = agent.orders()
    assert (order.request_id, order.kind, order.path) == (wanted, FileKind.DOWNLOAD, "/data/mine/züge.csv")
    assert (order.volumes, order.model_path, order.chunk_bytes) == (["/data/mine:/out"], "", 1000)
    assert agent.piece(wanted, CONTENT[:1000], size=2560) == m.FileReply(1000)
    (order,) = agent.orders()
    assert (order.offset, order.version) == (1000, "1.2.a")
    assert agent.piece(wanted, CONTENT[1000:2000], offset=1000, size=2560) == m.FileReply(2000)
    client = api_client(member)
    half = client.get(f"/api/v1/file-requests/{wanted}").json()
    assert (half["status"], half["received"], half["size"], half["sha256"]) == ("sending", 2000, 2560, "")
    assert agent.piece(wanted, CONTENT[2000:], offset=2000, size=2560) == m.FileReply(2560, done=True)
    assert agent.orders() == []
    done = client.get(f"/api/v1/file-requests/{wanted}").json()
    assert (done["status"], done["sha256"], done["received"]) == ("ready", SHA256, 2560)
    answer, body = content(client, wanted)
    assert answer.status_code == 200 and body == CONTENT
    assert answer["Content-Length"] == "2560" and answer["X-Content-SHA256"] == SHA256
    assert answer["Repr-Digest"] == f"sha-256=:{base64.b64encode(bytes.fromhex(SHA256)).decode()}:"
    assert answer["Content-Disposition"] == "attachment; filename*=UTF-8''z%C3%BCge.csv"
    listed = client.get(f"/api/v1/file-requests?task={task.public_id}").json()
    assert [item["id"] for item in listed["items"]] == [wanted]


def test_a_folder_is_listed(api_client, member, agent, ask):
    wanted = ask("/data/mine", "list")
    entries = [m.FileEntry("züge.csv", "file", 4096, 1.5), m.FileEntry("n\0ul", "folder")]
    assert agent.answer(wanted, entries=entries, more=True) == m.FileReply(0, done=True)
    agent.answer(wanted, entries=[])  # a repeat changes nothing
    client = api_client(member)
    told = client.get(f"/api/v1/file-requests/{wanted}").json()
    assert told["status"] == "ready" and told["more"] and agent.orders() == []
    assert told["entries"] == [
        {"name": "züge.csv", "kind": "file", "size": 4096, "modified_at": 1.5},
        {"name": "n?ul", "kind": "folder", "size": None, "modified_at": None},
    ]
    answer, _ = content(client, wanted)
    assert answer.status_code == 409 and answer.json()["code"] == "file_is_a_list"


def test_an_empty_file(api_client, member, agent, ask):
    wanted = ask()
    assert agent.piece(wanted, b"") == m.FileReply(0, done=True)
    answer, body = content(api_client(member), wanted)
    assert answer.status_code == 200 and body == b""
    assert answer["X-Content-SHA256"] == hashlib.sha256(b"").hexdigest()


def test_a_node_says_why_nothing_comes(api_client, member, agent, ask):
    wanted = ask()
    agent.answer(wanted, reason=reason(Code.PATH_NOT_ALLOWED, path="/data/mine/züge.csv"))
    told = api_client(member).get(f"/api/v1/file-requests/{wanted}").json()
    assert told["status"] == "failed" and told["reason"]["code"] == "path_not_allowed"
    assert "/data/mine/züge.csv" in told["reason"]["text"] and agent.orders() == []
    assert agent.piece(wanted, b"late").code == "file_closed"


# --- ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=990-1010", 990, 1011),
        ("bytes=2000-", 2000, 2560),
        ("bytes=-10", 2550, 2560),
        ("bytes=-9999", 0, 2560),
        ("bytes=2559-9999", 2559, 2560),
    ],
)
def test_a_range_comes_out_exact(api_client, member, agent, ask, header, first, last):
    wanted = ask()
    send_all(agent, wanted)
    answer, body = content(api_client(member), wanted, Range=header)
    assert answer.status_code == 206 and body == CONTENT[first:last]
    assert answer["Content-Range"] == f"bytes {first}-{last - 1}/2560"
    assert answer["Content-Length"] == str(last - first)


@pytest.mark.parametrize("header", ["bytes=5-2", "lines=1-2", "bytes=0-1,5-6", "bytes=-", "nonsense", ""])
def test_what_is_no_range_gets_the_whole(api_client, member, agent, ask, header):
    wanted = ask()
    send_all(agent, wanted)
    answer, body = content(api_client(member), wanted, Range=header)
    assert answer.status_code == 200 and body == CONTENT


def test_a_range_behind_the_end_is_refused_by_name(api_client, member, agent, ask):
    wanted = ask()
    send_all(agent, wanted)
    for header in ("bytes=2560-", "bytes=-0"):
        answer, _ = content(api_client(member), wanted, Range=header)
        assert answer.status_code == 416 and answer.json()["code"] == "range_not_satisfiable"


def test_a_range_of_another_file_begins_anew(api_client, member, agent, ask):
    wanted = ask()
    send_all(agent, wanted)
    client = api_client(member)
    same, _ = content(client, wanted, Range="bytes=5-", **{"If-Range": f'"{SHA256}"'})
    other, body = content(client, wanted, Range="bytes=5-", **{"If-Range": '"another"'})
    assert same.status_code == 206 and other.status_code == 200 and body == CONTENT


def test_a_client_may_ask_for_bytes_alone(api_client, member, agent, ask):
    wanted = ask()
    send_all(agent, wanted)
    answer, body = content(api_client(member), wanted, Accept="application/octet-stream")
    assert answer.status_code == 200 and body == CONTENT


# --- pieces that go wrong ---------------------------------------------------------------------------


def test_pieces_repeat_and_overlap_without_harm(agent, ask, row, store):
    wanted = ask()
    agent.piece(wanted, CONTENT[:1000], size=2560)
    assert agent.piece(wanted, CONTENT[:1000], size=2560) == m.FileReply(1000)  # the answer was lost
    assert agent.piece(wanted, CONTENT[2000:], offset=2000, size=2560) == m.FileReply(1000)  # too far
    assert row(wanted).received == 1000 and len(stored(store)) == 1
    send_all(agent, wanted)
    assert agent.piece(wanted, CONTENT[:1000], size=2560) == m.FileReply(2560, done=True)
    assert row(wanted).sha256 == SHA256 and FilePiece.objects.count() == 3


def test_a_server_that_dies_before_the_checksum_goes_on_with_the_next_word(agent, ask, row, monkeypatch):
    wanted = ask()

    def dies(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(services, "_finish", dies)
        with pytest.raises(SystemExit):
            send_all(agent, wanted)
    assert row(wanted).status == "sending" and row(wanted).received == 2560
    assert agent.piece(wanted, b"", offset=2560, size=2560) == m.FileReply(2560, done=True)
    assert row(wanted).sha256 == SHA256


def test_a_damaged_piece_adds_nothing(agent, ask, row, store):
    wanted = ask()
    assert agent.piece(wanted, CONTENT[:1000], size=2560, sha256="0" * 64).code == "file_chunk_damaged"
    assert agent.status == 400 and row(wanted).received == 0 and stored(store) == []
    assert agent.piece(wanted, b"", size=2560).code == "file_chunk_damaged"
    assert send_all(agent, wanted).done


def test_a_piece_is_no_longer_than_a_piece_or_the_file(agent, ask, row, store):
    wanted = ask()
    assert agent.piece(wanted, CONTENT[:1001], size=2560).code == "body_too_large"
    assert agent.status == 413
    assert agent.piece(wanted, b"four", size=3).code == "file_closed"  # it is another file now
    assert row(wanted).reason_code == "file_changed" and stored(store) == []


def test_another_version_closes_the_request(agent, ask, row, store):
    wanted = ask()
    agent.piece(wanted, CONTENT[:1000], size=2560)
    answer = agent.piece(wanted, CONTENT[1000:2000], offset=1000, size=2560, version="1.3.a")
    assert (agent.status, answer.code) == (409, "file_closed")
    assert row(wanted).reason_code == "file_changed" and stored(store) == []
    assert FilePiece.objects.count() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1},
        {"size": -1},
        {"size": 2**63},
        {"version": ""},
        {"version": "x" * 101},
        {"version": "\0"},
        {"offset": "x"},
        {"size": ""},
        {"incarnation": ""},
    ],
)
def test_figures_that_can_not_be_are_refused(agent, ask, row, changes):
    wanted = ask()
    answer = agent.piece(wanted, b"x", **changes)
    assert isinstance(answer, m.AgentError) and agent.status in (400, 409), answer
    assert row(wanted).status == "waiting"


def test_a_query_without_its_fields_is_refused(agent, ask):
    ask()
    answer = agent.post("files", b"x", **{"Content-Type": "application/octet-stream"})
    assert (agent.status, answer.code) == (400, "invalid")


def test_an_older_run_of_the_agent_sends_nothing(agent, ask, row):
    wanted = ask()
    assert agent.piece(wanted, CONTENT[:1000], size=2560, incarnation="run-0").code == "claim_superseded"
    assert agent.answer(wanted, incarnation="run-0").code == "claim_superseded"
    assert row(wanted).status == "waiting"


def test_another_node_neither_sends_nor_learns(agent, ask, row):
    wanted = ask()
    agent.node = factories.make_node(incarnation="run-1")
    for request_id in (wanted, "fr-aaaaaaaaaaaaaaaa", "no\0id"):
        assert agent.piece(request_id, CONTENT[:1000], size=2560).code == "not_this_nodes"
        assert agent.answer(request_id).code == "not_this_nodes"
    assert row(wanted).status == "waiting" and agent.orders() == []


async def test_blocks_are_the_same_under_both_kinds_of_server(tmp_path, settings, monkeypatch):
    settings.MEDIA_ROOT = tmp_path
    monkeypatch.setattr(store, "BLOCK", 7)
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"abcdefghij")
    pieces = [(0, 10, "a"), (10, 20, "b")]
    for first, last in ((0, 20), (5, 15), (10, 10), (19, 20)):
        plain = b"".join(store.read(pieces, first, last))
        assert plain == b"0123456789abcdefghij"[first:last]
        assert b"".join([block async for block in store.read_async(pieces, first, last)]) == plain
