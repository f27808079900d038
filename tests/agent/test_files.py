"""What people may get of their tasks' files, and how it goes over (AGENT-12)."""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.contract.messages import FileOrder
from agent.contract.states import FileKind
from agent.link.client import ServerClient
from agent.link.files import FileSender
from agent.models import files
from agent.models.paths import PathRefused, PathRules
from tests.agent.fakes import make_settings
from tests.fakes.fake_server import TOKEN, FakeServer, answer_with

pytestmark = pytest.mark.req("AGENT-12")
ORDER = "fr-aaaabbbbccccdddd"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What the node allows: two tenants' folders, and a model's."""
    root = tmp_path / "data"
    for folder in ("mine/deep", "theirs", "models/tiny"):
        (root / folder).mkdir(parents=True)
    (root / "mine" / "züge.csv").write_bytes(b"0123456789" * 10)
    (root / "mine" / "deep" / "note").write_text("deep")
    (root / "theirs" / "secret").write_text("not yours")
    (root / "models" / "tiny" / "config.json").write_text("{}")
    (tmp_path / "outside").write_text("outside")
    return root


def rules(data: Path) -> PathRules:
    return PathRules(allowed=(str(data),), relative_root=str(data / "models"))


def order(data: Path, path: Path | str, kind: FileKind = FileKind.DOWNLOAD, **changes: Any) -> FileOrder:
    made = FileOrder(ORDER, kind, str(path), [f"{data}/mine:/out"], "tiny", chunk_bytes=30)
    return msgspec.structs.replace(made, **changes)


def refusal(data: Path, path: Path | str, **changes: Any) -> str:
    with pytest.raises(PathRefused) as caught:
        files.read_piece(order(data, path, **changes), rules(data), ())
    assert caught.value.reason.params == {"path": str(path)}  # as it was given, nothing of the node's
    return str(caught.value.reason.code)


def test_a_file_comes_in_pieces(data: Path) -> None:
    asked, whole = order(data, data / "mine" / "züge.csv"), b""
    for _ in range(5):
        piece = files.read_piece(asked, rules(data), ())
        assert (piece.offset, piece.size) == (len(whole), 100)
        whole += piece.content
        asked = msgspec.structs.replace(asked, offset=len(whole), version=piece.version)
    assert whole == b"0123456789" * 10 and piece.content == b""


def test_a_models_files_are_its_tasks_too(data: Path) -> None:
    piece = files.read_piece(order(data, data / "models/tiny/config.json"), rules(data), ())
    assert piece.content == b"{}"


@pytest.mark.parametrize(
    "path",
    [
        "{data}/theirs/secret",
        "{data}/mine/../theirs/secret",
        "{data}/mine-evil/x",
        "{data}/mine/../../outside",
        "{data}/models/other/x",
        "/etc/shadow",
        "{data}/mine/\0/x",
        "mine/züge.csv",
        "{data}",
        "/",
        "{data}/mine/" + "x" * 300,
        "{data}/mine/" + "x/" * 3000,
    ],
)
@pytest.mark.parametrize("kind", FileKind)
def test_outside_is_refused_unseen(
    data: Path, path: str, kind: FileKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*args: Any) -> Any:
        raise AssertionError("the file system was asked")

    monkeypatch.setattr(files, "check_path", looked)
    monkeypatch.setattr(files, "mount_volume", looked)
    assert refusal(data, path.replace("{data}", str(data)), kind=kind) == "path_not_allowed"


def test_links_may_not_lead_out_of_what_the_task_mounts(data: Path) -> None:
    mine = data / "mine"
    for name, leads_to in (("a", data / "theirs"), ("b", data.parent / "outside"), ("c", mine / "c")):
        (mine / name).symlink_to(leads_to)
    (mine / "good").symlink_to(mine / "deep")
    assert refusal(data, mine / "a" / "secret") == "path_not_allowed"
    assert refusal(data, mine / "b") == "path_not_allowed"
    assert refusal(data, mine / "c") == "path_not_allowed"
    assert files.read_piece(order(data, mine / "good" / "note"), rules(data), ()).content == b"deep"


def test_a_link_that_comes_after_the_check_leads_nowhere(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, checked = data / "mine", files.check_path

    def check_then_swap(given: str, asked: PathRules) -> Path:
        found = checked(given, asked)
        (mine / "deep").rename(mine / "away")
        (mine / "deep").symlink_to(data / "theirs")
        return found

    (data / "theirs" / "note").write_text("not yours")
    monkeypatch.setattr(files, "check_path", check_then_swap)
    assert refusal(data, mine / "deep" / "note") == "path_not_allowed"


def test_a_file_that_becomes_a_link_after_the_check(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, checked = data / "mine" / "deep" / "note", files.check_path

    def check_then_swap(given: str, asked: PathRules) -> Path:
        found = checked(given, asked)
        target.unlink()
        target.symlink_to(data / "theirs" / "secret")
        return found

    monkeypatch.setattr(files, "check_path", check_then_swap)
    assert refusal(data, target) == "path_not_allowed"


def test_what_is_no_file_is_not_opened(data: Path) -> None:
    mine = data / "mine"
    os.mkfifo(mine / "pipe")
    with socket.socket(socket.AF_UNIX) as door:
        here = Path.cwd()
        os.chdir(mine)  # the name of a socket may be short only
        try:
            door.bind("door")
        finally:
            os.chdir(here)
        assert refusal(data, mine / "pipe") == "file_not_regular"
        assert refusal(data, mine / "door") == "file_not_regular"
    assert refusal(data, mine) == "file_not_regular"  # a folder is listed, not downloaded
    assert refusal(data, mine / "nothing") == "file_not_found"
    assert refusal(data, mine / "züge.csv" / "below") in ("file_not_found", "path_not_allowed")


def test_what_the_node_would_not_mount_is_not_read(data: Path) -> None:
    asked = order(data, data / "mine" / "züge.csv")
    with pytest.raises(PathRefused) as caught:
        files.read_piece(asked, rules(data), (str(data / "mine" / "deep"),))  # holds the agent's own folder
    assert caught.value.reason.code == "path_not_allowed"
    denied = PathRules(allowed=(str(data),), denied=(str(data / "mine" / "deep"),))
    with pytest.raises(PathRefused):
        files.read_piece(order(data, data / "mine" / "deep" / "note"), denied, ())


def test_another_file_does_not_go_on_where_the_first_ended(data: Path) -> None:
    file = data / "mine" / "züge.csv"
    first = files.read_piece(order(data, file), rules(data), ())
    with file.open("ab") as grows:
        grows.write(b"more")
    goes_on = {"offset": 30, "version": first.version}
    assert files.read_piece(order(data, file, **goes_on), rules(data), ()).size == 100
    os.truncate(file, 40)
    assert refusal(data, file, **goes_on) == "file_changed"
    file.rename(file.with_name("old"))
    file.write_bytes(b"x" * 200)
    assert refusal(data, file, **goes_on) == "file_changed"
    assert refusal(data, file, offset=30, version="nonsense") == "file_changed"


def test_a_folder_is_listed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = data / "mine"
    (mine / "link").symlink_to("/etc")
    (Path(os.fsdecode(os.fsencode(mine) + b"/bad\xff"))).write_text("")
    asked = order(data, mine, FileKind.LIST)
    entries, more = files.list_entries(asked, rules(data), ())
    assert [(entry.name, entry.kind, entry.size) for entry in entries] == [
        ("bad\ufffd", "file", 0),
        ("deep", "folder", None),
        ("link", "link", None),
        ("züge.csv", "file", 100),
    ]
    assert not more
    monkeypatch.setattr(files, "MOST_ENTRIES", 2)
    entries, more = files.list_entries(asked, rules(data), ())
    assert len(entries) == 2 and more
    (only,), _ = files.list_entries(order(data, mine / "züge.csv", FileKind.LIST), rules(data), ())
    assert (only.name, only.size) == ("züge.csv", 100)


# --- over the wire ----------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


def sender(client: ServerClient, data: Path) -> FileSender:
    settings = make_settings(data / "state", server_url="http://127.0.0.1:1")
    settings = msgspec.structs.replace(
        settings, allowed_volume_prefixes=[str(data)], relative_model_root=str(data / "models")
    )
    return FileSender(settings, "inc-1", send_piece=client.file_piece, send_answer=client.file_answer)


@pytest.fixture
async def client(server: FakeServer, tmp_path: Path) -> AsyncIterator[ServerClient]:
    settings = make_settings(tmp_path, server_url=server.url, join_token=TOKEN)
    server.nodes[hashlib.sha256(b"secret").hexdigest()] = "node-1"
    async with ServerClient(settings) as made:
        made.set_credential("node-1", "secret")
        yield made


async def test_a_download_goes_on_after_silence_and_a_restart(
    server: FakeServer, client: ServerClient, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.link.files.AFTER_SILENCE_S", 0.01)
    server.file_orders[ORDER] = order(data, data / "mine" / "züge.csv")
    first = sender(client, data)
    first.take(list(server.file_orders.values()))
    assert await first.round() and len(server.files[ORDER]) == 30
    server.fail_once("files", answer_with(503))
    assert not await first.round()
    assert await first.round() and len(server.files[ORDER]) == 60
    second = sender(client, data)  # a new run knows what the server tells it
    second.take(list(server.file_orders.values()))
    working = asyncio.ensure_future(second.run())
    async with asyncio.timeout(20):
        while server.file_orders:
            await asyncio.sleep(0.01)
    working.cancel()
    assert bytes(server.files[ORDER]) == b"0123456789" * 10


async def test_an_empty_file_and_a_refusal_are_answers_too(
    server: FakeServer, client: ServerClient, data: Path
) -> None:
    (data / "mine" / "empty").touch()
    server.file_orders = {
        ORDER: order(data, data / "mine" / "empty"),
        "fr-2": order(data, data / "theirs", request_id="fr-2", kind=FileKind.LIST),
        "fr-3": order(data, data / "mine", request_id="fr-3", kind=FileKind.LIST),
    }
    working = sender(client, data)
    working.take(list(server.file_orders.values()))
    assert await working.round()
    assert server.files == {ORDER: bytearray()} and not server.file_orders
    told = {answer.request_id: answer for answer in server.file_answers}
    assert told["fr-2"].reason is not None and told["fr-2"].reason.code == "path_not_allowed"
    assert [entry.name for entry in told["fr-3"].entries] == ["deep", "empty", "züge.csv"]


async def test_the_agents_own_folder_is_given_to_nobody(
    server: FakeServer, client: ServerClient, data: Path
) -> None:
    (data / "state").mkdir()
    (data / "state" / "identity.json").write_text("{}")
    of_all = order(data, data / "state" / "identity.json", volumes=[f"{data}/state:/out"])
    server.file_orders = {ORDER: of_all}
    working = sender(client, data)
    working.take([of_all])
    assert await working.round()
    told = server.file_answers[0].reason
    assert told is not None and told.code == "path_not_allowed" and not server.files


async def test_a_refused_order_is_not_asked_again_while_it_is_listed(
    server: FakeServer, client: ServerClient, data: Path
) -> None:
    orders = [order(data, data / "mine" / "züge.csv")]
    server.always["files"] = answer_with(403)
    working = sender(client, data)
    for _ in range(3):
        working.take(orders)
        assert await working.round()
    assert len(server.headers) == 1
    working.take([])
    working.take(orders)
    await working.round()
    assert len(server.headers) == 2
