"""kill -9 of each part, and a Redis that hangs, under light traffic: calls go on or fail clearly, loops
go on within 5 s, nothing is done twice (OPS-06).
"""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from apps.ops.rest import ApiRefusal
from tests.production.traffic import traffic_of
from tests.production_stack import ProductionStack, pause
from tests.stack import until

pytestmark = pytest.mark.req("OPS-06")

LOOPS = ("scheduling.place", "recovery.sweep")
RESUME_S = 5.0
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


def loops_ran_since(stack: ProductionStack, moment: float) -> bool:
    return all(stack.last_run(name) > moment for name in LOOPS)


def is_back(stack: ProductionStack, part: str, count: int) -> bool:
    """As many as before, after one was killed and had gone."""
    return len(stack.processes(part)) == count


def everything_answers(stack: ProductionStack) -> bool:
    try:
        stack.ask()
        stack.api()
    except Exception:
        return False
    return True


def identity(stack: ProductionStack) -> dict[str, Any]:
    group = stack.demo_group()
    return {"group": group["id"], "tasks": [task["id"] for task in group["tasks"]]}


@pytest.mark.parametrize("part", ["worker", "scheduler", "beat", "wsgi", "asgi", "redis"])
def test_a_killed_part(production: ProductionStack, part: str) -> None:
    before = identity(production)
    with traffic_of(production) as traffic:
        until(lambda: min(traffic.good.values()) >= 3, "traffic flows")
        good_before = dict(traffic.good)
        count = len(production.processes(part))
        production.kill(production.part(part))
        killed_at = time.time()
        if part == "redis":  # there is one of it: from its return on
            until(lambda: is_back(production, part, count), "it is started again", limit_s=10)
            killed_at = time.time()
        until(lambda: loops_ran_since(production, killed_at), "the loops go on", limit_s=RESUME_S)
        until(
            lambda: all(traffic.good[kind] >= good_before[kind] + 5 for kind in traffic.good),
            lambda: f"traffic goes on: {traffic}",
        )
        until(lambda: is_back(production, part, count), "it is started again")
    assert traffic.wrong == []
    if part in ("worker", "scheduler", "beat", "redis"):
        assert traffic.clear == [], "no call needs it"
    until(lambda: everything_answers(production), "all of it answers")
    assert identity(production) == before
    engines = production.engines()
    assert len(engines) == 1, "no engine was started twice"


def test_a_killed_agent(production: ProductionStack) -> None:
    """Its engines end with it (they are processes); what was there comes back under the same ids."""
    before = identity(production)
    with traffic_of(production) as traffic:
        until(lambda: min(traffic.good.values()) >= 3, "traffic flows")
        production.kill(production.part("agent"))
        killed_at = time.time()
        until(lambda: loops_ran_since(production, killed_at), "the loops go on", limit_s=RESUME_S)
        until(lambda: not production.engines(), "its engines end with it")
        seen = traffic.good["model"]
        until(lambda: traffic.good["model"] >= seen + 5, lambda: f"it serves again: {traffic}", limit_s=90)
    assert traffic.wrong == []
    assert all(words.startswith("model") for words in traffic.clear), "the API goes on"
    assert identity(production) == before
    assert len(production.engines()) == 1


def test_a_redis_that_hangs_holds_no_request(production: ProductionStack) -> None:
    api, redis = production.api(), production.part("redis")
    took: dict[str, list[float]] = {}

    def measured(name: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return call()
        except ApiRefusal as refusal:
            assert refusal.status < 500, refusal
        finally:
            took.setdefault(name, []).append(time.monotonic() - began)

    for path in ("/api/v1/task-groups", "/api/v1/me", "/readyz"):  # each process has seen a request before
        for _ in range(4):
            api.call("GET", path)
    pause(redis)
    try:
        for number in range(5):
            measured("list", lambda: api.call("GET", "/api/v1/task-groups"))
            name = f"hung-{number}"
            key = measured("key", lambda name=name: api.call("POST", "/api/v1/api-keys", {"name": name}))
            measured("end of a key", lambda key=key: api.call("DELETE", f"/api/v1/api-keys/{key['id']}"))
            service = service_of(production, name)
            group = measured("service", lambda new=service: api.call("POST", "/api/v1/task-groups", new))
            address = f"/api/v1/task-groups/{group['id']}"
            measured("stop", lambda at=address: api.call("POST", f"{at}/stop"))
            measured("delete", lambda at=address: api.call("DELETE", at))
            measured("ready", lambda: api.call("GET", "/readyz"))
            measured("join", lambda: join_with_a_wrong_token(production))
        assert production.ask(), "inference goes on"
        # A call that waits for Redis does so each time; a busy machine makes one slow now and then.
        assert {name: s for name, s in took.items() if median(s) >= 1.0 or max(s) >= 5.0} == {}
    finally:
        redis.send_signal(signal.SIGCONT)
    resumed_at = time.time()
    until(lambda: loops_ran_since(production, resumed_at), "the loops go on", limit_s=RESUME_S)


def service_of(stack: ProductionStack, name: str) -> dict[str, Any]:
    model = str(stack.data_dir / "models" / "tiny.gguf")
    return {"name": name, "task": {"image": IMAGE, "gpu_required": 0, "model_path": model}}


def join_with_a_wrong_token(stack: ProductionStack) -> None:
    """The one request that asks the cache, which is Redis."""
    message = {
        "type": "join",
        "token": "jt-wrong",
        "secret_sha256": "0" * 64,
        "machine_id": "machine",
        "hostname": "host",
        "agent_version": "0.1.0",
    }
    request = urllib.request.Request(
        f"{stack.base_url}/agent/v1/join",
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json", "X-HeteroFlow-Contract": "1"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 403
