"""A small client of our own REST API, for the demo. Speaks HTTP like any user; knows no row."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

# This machine talks to itself: never through a proxy that the environment names.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ApiRefusal(Exception):
    """The API said no; `problem` is its body."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.status = status
        self.problem = problem


class Api:
    """Requests to one server, as one person. Raises ApiRefusal for an answer that is an error, and
    OSError when there is no answer."""

    def __init__(self, base_url: str, access_token: str = "", timeout_s: float = 60.0) -> None:
        self.base_url = base_url
        self.access_token = access_token
        self.timeout_s = timeout_s

    def sign_in(self, username: str, password: str) -> None:
        """POST /api/v1/auth/token; later requests carry the token."""
        body = {"username": username, "password": password}
        self.access_token = self.call("POST", "/api/v1/auth/token", body)["access"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The decoded answer of one request; None for an empty one."""
        request = urllib.request.Request(  # noqa: S310 - the address is our own
            self.base_url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if self.access_token:
            request.add_header("Authorization", f"Bearer {self.access_token}")
        try:
            with _opener.open(request, timeout=self.timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiRefusal(error.code, _problem(error.read())) from None
        return json.loads(text) if text else None

    def rows(self, path: str) -> Iterator[dict[str, Any]]:
        """All rows of a list, page after page."""
        page, seen, total = 1, 0, 1
        while seen < total:
            answer = self.call("GET", f"{path}?page={page}&page_size=200")
            yield from answer["items"]
            page, seen, total = page + 1, seen + max(len(answer["items"]), 1), answer["total"]

    def answers(self, path: str) -> bool:
        """Whether the address answers with success."""
        try:
            self.call("GET", path)
        except (OSError, ApiRefusal):
            return False
        return True


def _problem(text: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(text)
    except ValueError:
        return {"code": "unreadable", "detail": text[:200].decode(errors="replace")}
    return problem if isinstance(problem, dict) else {"code": "unreadable", "detail": str(problem)[:200]}
