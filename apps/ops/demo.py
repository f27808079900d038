"""The demo service: made through the REST API as its member would, then awaited and shown.

A second start finds the same service by its name and makes nothing. Never reads or writes a row.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.ops.rest import Api, ApiRefusal

TENANT, MEMBER, SERVICE = "demo", "demo", "demo"
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
LOOK_EVERY_S = 0.5
STILL_EVERY_S = 15.0  # an unchanged state is told again this often, so that a wait never looks hung
LOADING_MAX_S = 300
PUBLISHED_WITHIN_S = 1.0  # the gateway reads the published version each second


@dataclass(frozen=True)
class Outcome:
    """`api_key` only where it was made just now; `running` False when the wait was over before."""

    group: dict[str, Any]
    api_key: str | None
    running: bool


def _find(rows: Iterable[dict[str, Any]], field: str, value: str) -> dict[str, Any] | None:
    return next((row for row in rows if row[field] == value), None)


def ensure_member(operator: Api, new_password: Callable[[], str]) -> str | None:
    """Tenant and member, and the member's password when it was made just now."""
    tenant = _find(operator.rows("/api/v1/tenants"), "slug", TENANT)
    if tenant is None:
        tenant = operator.call("POST", "/api/v1/tenants", {"slug": TENANT, "name": "Demo"})
    members = f"/api/v1/tenants/{tenant['id']}/members"
    if _find(operator.rows(members), "username", MEMBER):
        return None
    password = new_password()
    operator.call("POST", members, {"username": MEMBER, "password": password, "role": "member"})
    return password


def ensure_model(operator: Api, model: Path, model_name: str) -> None:
    """The model in the catalog, so that the create form offers it (SVC-06); one of that name stays."""
    if _find(operator.rows("/api/v1/models"), "name", model_name) is None:
        body = {
            "name": model_name,
            "path": str(model),
            "image": IMAGE,
            "size_mb": max(1, model.stat().st_size // 2**20),
        }
        operator.call("POST", "/api/v1/models", body)


def find_service(api: Api) -> dict[str, Any] | None:
    """The demo service as the API describes it; None where there is none."""
    return _find(api.rows("/api/v1/task-groups"), "name", SERVICE)


def create_service(api: Api, model: Path, model_name: str) -> dict[str, Any]:
    """POST /api/v1/task-groups: a CPU service of this model file; the answer holds its key, once."""
    body = {
        "name": SERVICE,
        "model_name": model_name,
        "parallelism": "single",
        "world_size": 1,
        "enable_api": True,
        "task": {"image": IMAGE, "gpu_required": 0, "model_path": str(model)},
        "health_check": {"start_period_seconds": LOADING_MAX_S},
    }
    return dict(api.call("POST", "/api/v1/task-groups", body))


def ensure_service(api: Api, model: Path, model_name: str) -> tuple[dict[str, Any], str | None]:
    """The demo service, and its key when it was made just now."""
    found = find_service(api)
    if found is not None:
        return found, None
    made = create_service(api, model, model_name)
    return made, made["api_key"]


def describe(group: dict[str, Any]) -> str:
    """Its state in one line: state, phase of the task, reason."""
    task = (group.get("tasks") or [{}])[0]
    reason = (group.get("reason") or {}).get("text", "")
    return ", ".join(part for part in (group["status"], task.get("phase"), reason) if part)


class Nodes:
    """Whether the nodes under a service have spoken since a moment. Rows of an earlier run, restored or left
    by a kill, say what ran then; a node's second word comes after its first was compared with them."""

    def __init__(self, operator: Api, since: datetime) -> None:
        self._operator = operator
        self._since = since
        self._first: dict[str, str] = {}

    def confirm(self, group: dict[str, Any]) -> bool:
        """Whether each node that a running task is on has; `group` as its operator reads it."""
        names = {task["node"] for task in group["tasks"] if task["status"] == "running"}
        seen = {row["name"]: row["last_seen_at"] for row in self._operator.rows("/api/v1/nodes")}
        for name in names:
            if seen.get(name) and datetime.fromisoformat(seen[name]) > self._since:
                self._first.setdefault(name, seen[name])
        return all(name in self._first and seen[name] != self._first[name] for name in names)


def wait_until_running(
    api: Api,
    group_id: str,
    say: Callable[[str], None],
    *,
    give_up_s: float,
    stopping: Callable[[], bool],
    confirm: Callable[[dict[str, Any]], bool] = lambda group: True,
) -> tuple[dict[str, Any], bool]:
    """Tell each change of state until it runs, and `confirm` says so too. False when it failed, was stopped,
    or time is up."""
    last, said_at, give_up_at = "", 0.0, time.monotonic() + give_up_s
    while True:
        group = api.call("GET", f"/api/v1/task-groups/{group_id}")
        now = time.monotonic()
        unconfirmed = group["status"] == "running" and not confirm(group)
        line = "its node has not spoken since this start" if unconfirmed else describe(group)
        if line != last or now - said_at >= STILL_EVERY_S:
            say(f"demo service: {line}")
            last, said_at = line, now
        if group["status"] == "running" and not unconfirmed:
            return group, True
        if group["status"] == "stopped" or now >= give_up_at or stopping():
            return group, False
        time.sleep(LOOK_EVERY_S)


def wait_until_answers(base_url: str, key: str, model: str, *, give_up_s: float) -> float | None:
    """Call the model once through the gateway, as its user will: what is printed next must work.

    The seconds that the answer took; None where it did not come in time.
    """
    api, give_up_at = Api(base_url, key, timeout_s=give_up_s), time.monotonic() + give_up_s
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    time.sleep(PUBLISHED_WITHIN_S)  # a call before would leave a refused one in the usage records
    while time.monotonic() < give_up_at:
        began = time.monotonic()
        try:
            api.call("POST", "/v1/chat/completions", body)
        except ApiRefusal as refusal:
            if refusal.status not in (404, 503):  # its route is not published yet
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return time.monotonic() - began
    return None
