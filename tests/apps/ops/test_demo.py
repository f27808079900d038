"""The demo's parts: model file, REST client, and what is told while it starts."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from apps.ops import demo, demo_model
from apps.ops.rest import Api, ApiRefusal


class Answers(BaseHTTPRequestHandler):
    """Answers each (method, path) from a table, and notes what came."""

    table: ClassVar[dict[tuple[str, str], list[tuple[int, Any]]]] = {}
    seen: ClassVar[list[tuple[str, str, Any]]] = []

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, json.loads(body) if body else None))
        status, answer = self.table[(self.command, self.path)].pop(0)
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[Answers]]:
    Answers.table, Answers.seen = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        Answers.url = f"http://127.0.0.1:{listening.server_port}"  # type: ignore[attr-defined]
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield Answers
        listening.shutdown()


@pytest.fixture
def api(server: Any) -> Api:
    return Api(server.url)


def page(items: list[dict[str, Any]], total: int) -> tuple[int, dict[str, Any]]:
    return 200, {"items": items, "total": total}


def test_rows_follow_the_pages(server: Any, api: Api) -> None:
    server.table = {
        ("GET", "/x?page=1&page_size=200"): [page([{"n": 1}, {"n": 2}], 3)],
        ("GET", "/x?page=2&page_size=200"): [page([{"n": 3}], 3)],
    }
    assert [row["n"] for row in api.rows("/x")] == [1, 2, 3]


def test_rows_of_an_empty_list_and_of_one_that_shrinks(server: Any, api: Api) -> None:
    server.table = {("GET", "/x?page=1&page_size=200"): [page([], 0), page([], 1)]}
    assert list(api.rows("/x")) == []
    assert list(api.rows("/x")) == []


@pytest.mark.parametrize("body", [b'{"code": "name_taken", "detail": "taken"}', b"<html>", b"[1]", b""])
def test_refusals_keep_their_words(server: Any, api: Api, body: bytes) -> None:
    server.table = {("POST", "/x"): [(409, body)]}
    with pytest.raises(ApiRefusal) as refused:
        api.call("POST", "/x", {})
    assert refused.value.status == 409
    assert refused.value.problem["code"] in ("name_taken", "unreadable")


def test_nobody_there_is_an_oserror_and_no_answer() -> None:
    api = Api("http://127.0.0.1:9", timeout_s=1)
    assert not api.answers("/readyz")
    with pytest.raises(OSError, match="refused"):
        api.call("GET", "/")


def test_existing_service_is_taken_and_no_key_is_made(server: Any, api: Api) -> None:
    rows = [{"name": "other"}, {"name": "demo", "id": "tg-1"}]
    server.table = {("GET", "/api/v1/task-groups?page=1&page_size=200"): [page(rows, 2)]}
    assert demo.ensure_service(api, Path("/m.gguf"), "m") == (rows[1], None)


def test_new_service_is_asked_for_as_a_user_would(server: Any, api: Api) -> None:
    made = {"id": "tg-1", "api_key": "sk-1"}
    server.table = {
        ("GET", "/api/v1/task-groups?page=1&page_size=200"): [page([], 0)],
        ("POST", "/api/v1/task-groups"): [(201, made)],
    }
    assert demo.ensure_service(api, Path("/models/m.gguf"), "m") == (made, "sk-1")
    sent = server.seen[-1][2]
    assert sent["model_name"] == "m"
    assert sent["task"] == {"image": demo.IMAGE, "gpu_required": 0, "model_path": "/models/m.gguf"}


def test_the_model_is_registered_once(server: Any, api: Api, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    server.table = {
        ("GET", "/api/v1/models?page=1&page_size=200"): [page([], 0), page([{"name": "m"}], 1)],
        ("POST", "/api/v1/models"): [(201, {})],
    }
    for _ in range(2):
        demo.ensure_model(api, model, "m")
    sent = [body for method, _, body in server.seen if method == "POST"]
    assert sent == [{"name": "m", "path": str(model), "image": demo.IMAGE, "size_mb": 1}]


def test_each_change_is_told_once(server: Any, api: Api) -> None:
    def group(status: str, phase: str) -> tuple[int, dict[str, Any]]:
        return 200, {"status": status, "tasks": [{"phase": phase}], "reason": {"text": "Why."}}

    states = [
        group("pending", ""),
        group("pending", ""),
        group("scheduling", "loading"),
        group("running", "ready"),
    ]
    server.table = {("GET", "/api/v1/task-groups/tg-1"): states}
    said: list[str] = []
    _, running = demo.wait_until_running(api, "tg-1", said.append, give_up_s=30, stopping=lambda: False)
    assert running
    assert said == [
        "demo service: pending, Why.",
        "demo service: scheduling, loading, Why.",
        "demo service: running, ready, Why.",
    ]


@pytest.mark.req("OPS-01")
def test_rows_of_an_earlier_run_are_not_taken_for_what_runs_now(server: Any, api: Api) -> None:
    def nodes(second: int) -> tuple[int, dict[str, Any]]:
        return page([{"name": "local", "last_seen_at": f"2026-01-01T00:00:{second:02}Z"}], 1)

    gone = {"status": "stopped", "phase": "", "node": "removed"}
    one = {"status": "running", "phase": "ready", "node": "local"}
    group = {"status": "running", "tasks": [one, gone], "reason": None}
    server.table = {
        ("GET", "/api/v1/task-groups/tg-1"): [(200, group)] * 4,
        ("GET", "/api/v1/nodes?page=1&page_size=200"): [nodes(10), nodes(31), nodes(31), nodes(36)],
    }
    said: list[str] = []
    confirm = demo.Nodes(api, datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)).confirm
    _, running = demo.wait_until_running(
        api, "tg-1", said.append, give_up_s=30, stopping=lambda: False, confirm=confirm
    )
    assert running
    assert said == [
        "demo service: its node has not spoken since this start",
        "demo service: running, ready",
    ]
    assert not server.table["GET", "/api/v1/nodes?page=1&page_size=200"]  # only the second word counted


def test_the_wait_ends(server: Any, api: Api) -> None:
    waiting = [(200, {"status": "pending", "tasks": [], "reason": None})] * 2
    server.table = {("GET", "/api/v1/task-groups/tg-1"): waiting}
    for give_up_s, stopping in ((0.0, False), (30.0, True)):
        _, running = demo.wait_until_running(
            api, "tg-1", lambda line: None, give_up_s=give_up_s, stopping=lambda said=stopping: said
        )
        assert not running


def test_model_name_is_the_files_without_quantisation() -> None:
    assert demo_model.model_name(Path("/x/SmolLM2-135M-Instruct.Q4_1.gguf")) == "SmolLM2-135M-Instruct"
    assert demo_model.model_name(Path("tiny.gguf")) == "tiny"


def test_model_is_placed_once(tmp_path: Path) -> None:
    source, models = tmp_path / "m.gguf", tmp_path / "models"
    source.write_bytes(b"GGUF1")
    models.mkdir()
    placed = demo_model.place(source, models)
    assert placed.read_bytes() == b"GGUF1"
    inode = placed.stat().st_ino
    assert demo_model.place(source, models).stat().st_ino == inode
    source.unlink()
    source.write_bytes(b"GGUF-longer")
    assert demo_model.place(source, models).read_bytes() == b"GGUF-longer"
    assert [path.name for path in models.iterdir()] == ["m.gguf"]


def test_model_is_copied_where_it_can_not_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF")
    (tmp_path / "models").mkdir()

    def other_file_system(*paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(demo_model.os, "link", other_file_system)
    placed = demo_model.place(source, tmp_path / "models")
    assert placed.read_bytes() == b"GGUF"
    assert placed.stat().st_ino != source.stat().st_ino
