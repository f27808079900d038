"""What stands where on the one port: pages, API, inference, sockets (real server)."""

import asyncio
import json
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
    address = stack.base_url.replace("http", "ws", 1) + path

    async def attempt() -> int:
        try:
            async with connect(address, ssl=stack.trust, additional_headers=headers or None):
                return 101
        except InvalidStatus as refused:
            return int(refused.response.status_code)

    return asyncio.run(attempt())


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ws/nothing", {"Origin": "{own}"}),
        ("/ws/tasks/task-aaaaaaaaaaaaaaaa/logs", {"Origin": "http://127.0.0.1:1"}),
        ("/ws/tasks/task-aaaaaaaaaaaaaaaa/logs", {"Origin": "http://elsewhere.example"}),
        ("/ws/tasks/task-aaaaaaaaaaaaaaaa/logs", {}),
        ("/ws/agent", {}),
        ("/ws/agent/", {}),
    ],
)
def test_sockets_that_do_not_open(running_server: Stack, path: str, headers: dict[str, Any]) -> None:
    headers = {name: value.format(own=running_server.base_url) for name, value in headers.items()}
    assert try_socket(running_server, path, **headers) in (401, 403)


def post(stack: Stack, path: str, body: bytes, **headers: str) -> int:
    asked = urllib.request.Request(
        stack.base_url + path, body, {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.req("TEN-05")
def test_nobody_tells_the_server_where_they_come_from(running_server: Stack) -> None:
    guess = json.dumps({"username": "door-guesser", "password": "wrong"}).encode()
    tried = [
        post(running_server, "/api/v1/auth/token", guess, **{"X-Forwarded-For": f"10.0.0.{n}"})
        for n in range(6)
    ]
    assert tried[0] == 401 and tried[-1] == 429


@pytest.mark.parametrize("path", ["/", "/api/v1/auth/token", "/agent/v1/join", "/v1/files", "/nowhere"])
def test_a_stranger_can_not_fill_the_disk(running_server: Stack, path: str) -> None:
    assert post(running_server, path, b"x" * (6 * 1024 * 1024)) == 413
