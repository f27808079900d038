"""What stands where on the one port: pages, API, inference, sockets (real server)."""

import asyncio
import urllib.error
import urllib.request
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.stack import Stack


def status(stack: Stack, path: str) -> tuple[int, str]:
    """Status and content type of a GET, redirects followed."""
    try:
        with urllib.request.urlopen(stack.base_url + path, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/healthz", (200, "application/json")),
        ("/readyz", (200, "application/json")),
        ("/admin/login/", (200, "text/html; charset=utf-8")),
        ("/", (200, "text/html; charset=utf-8")),  # the sign-in page
        ("/api/schema/", (200, "text/html; charset=utf-8")),
        ("/api/v1/me", (401, "application/json")),
        ("/v1/models", (401, "application/json")),
        ("/v1/nothing/here", (404, "application/json")),
        ("/api/v1/nothing", (404, "application/json")),
        ("/static/unfold/css/styles.css", (200, 'text/css; charset="utf-8"')),
        ("/static/nothing.css", (404, "text/html; charset=utf-8")),
    ],
)
def test_who_answers_where(running_server: Stack, path: str, expected: tuple[int, str]) -> None:
    assert status(running_server, path) == expected


def try_socket(stack: Stack, path: str, **headers: str) -> int:
    async def attempt() -> int:
        try:
            async with connect(f"ws://127.0.0.1:{stack.port}{path}", additional_headers=headers or None):
                return 101
        except InvalidStatus as refused:
            return int(refused.response.status_code)

    return asyncio.run(attempt())


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ws/nothing", {"Origin": "http://127.0.0.1"}),
        ("/ws/tasks/task-aaaaaaaaaaaaaaaa/logs", {"Origin": "http://elsewhere.example"}),
        ("/ws/tasks/task-aaaaaaaaaaaaaaaa/logs", {}),
        ("/ws/agent", {}),
        ("/ws/agent/", {}),
    ],
)
def test_sockets_that_do_not_open(running_server: Stack, path: str, headers: dict[str, Any]) -> None:
    assert try_socket(running_server, path, **headers) in (401, 403)
