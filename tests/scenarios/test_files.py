"""From a request for a task's files to the bytes, through real server, agent and proxy (AGENT-12)."""

import hashlib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from apps.ops.rest import ApiRefusal
from tests.stack import Stack, until

pytestmark = pytest.mark.req("AGENT-12")


def service_of(stack: Stack) -> dict[str, Any]:
    groups = stack.api().call("GET", "/api/v1/task-groups")["items"]
    return next(group for group in groups if group["model_name"] == stack.model)


def ask(stack: Stack, kind: str, path: str) -> dict[str, Any]:
    """A request that is done."""
    api = stack.api()
    body = {"task_id": service_of(stack)["tasks"][0]["id"], "request_type": kind, "target_path": path}
    made = api.call("POST", "/api/v1/file-requests", body)
    assert made["status"] == "waiting"

    def read() -> dict[str, Any]:
        return dict(api.call("GET", f"/api/v1/file-requests/{made['id']}"))

    until(lambda: read()["status"] in ("ready", "failed"), f"{kind} of {path} is answered")
    return read()


def fetch(stack: Stack, request_id: str, span: str = "") -> tuple[int, bytes, Any]:
    request = urllib.request.Request(f"{stack.base_url}/api/v1/file-requests/{request_id}/content")
    request.add_header("Authorization", f"Bearer {stack.api().access_token}")
    if span:
        request.add_header("Range", span)
    with urllib.request.urlopen(request, timeout=60, context=stack.trust) as answer:
        return answer.status, answer.read(), answer.headers


def test_a_models_file_comes_whole_and_in_ranges(running_server: Stack) -> None:
    file = Path(service_of(running_server)["model_path"])
    content = file.read_bytes()
    done = ask(running_server, "download", str(file))
    assert done["status"] == "ready", done
    assert (done["size"], done["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    status, body, headers = fetch(running_server, done["id"])
    assert (status, body) == (200, content)
    assert headers["X-Content-SHA256"] == done["sha256"] and file.name in headers["Content-Disposition"]
    half = len(content) // 2
    status, rest, headers = fetch(running_server, done["id"], f"bytes={half}-")
    assert (status, rest) == (206, content[half:])
    assert headers["Content-Range"] == f"bytes {half}-{len(content) - 1}/{len(content)}"
    (entry,) = ask(running_server, "list", str(file))["entries"]
    assert (entry["name"], entry["size"]) == (file.name, len(content))


def test_what_lies_beside_the_model_is_not_the_tasks(running_server: Stack) -> None:
    file = Path(service_of(running_server)["model_path"])
    for path in (str(file.parent), "/etc/passwd", f"{file}/../x", f"{file}-evil"):
        with pytest.raises(ApiRefusal) as refusal:
            ask(running_server, "list", path)
        assert refusal.value.status == 400
