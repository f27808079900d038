"""A Redis that hangs (SIGSTOP): every API call stays under a second, loops go on once it is back (OPS-06).

That no thread of a request waits for it at all but a join, once, is proven in tests/apps/test_redis_hangs.py.
"""

import json
import signal
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from apps.ops.rest import Api
from tests.production.test_kills import IMAGE, await_every_loop
from tests.production_stack import ProductionStack, pause
from tests.stack import until
from tests.steady import SteadyClock, steady_clock_of

pytestmark = pytest.mark.req("OPS-06")

ROUNDS = 5
# More than any call may take longer while Redis hangs than the slowest one of its kind in the same minute
# did while it answered. Together they are less than a second.
ADDED_S = 0.7
Took = dict[str, list[float]]


def test_every_call_of_the_api_stays_short(production: ProductionStack) -> None:
    api, redis = production.api(), production.part("redis")
    answered: Took = defaultdict(list)
    hung: Took = defaultdict(list)
    with steady_clock_of(production) as clock:
        for number in range(ROUNDS):
            call_everything(production, api, f"answered-{number}", clock, answered)
            pause(redis)
            try:
                call_everything(production, api, f"hung-{number}", clock, hung)
                assert production.ask(), "inference goes on"
            finally:
                redis.send_signal(signal.SIGCONT)
            resumed_at = time.time()
            await_every_loop(production, clock, resumed_at)
    added = {name: [one - max(answered[name]) for one in took] for name, took in hung.items()}
    assert {name: s for name, s in added.items() if max(s) >= ADDED_S} == {}, answered
    until(lambda: len(production.engines()) == 1, "what was begun has ended")


def call_everything(stack: ProductionStack, api: Api, name: str, clock: SteadyClock, took: Took) -> None:
    """One call of each kind, and how long it took by a clock that a busy machine slows down."""

    def timed(kind: str, call: Callable[[], Any]) -> Any:
        began = clock.now()
        answer = call()
        took[kind].append(clock.now() - began)
        return answer

    timed("list", lambda: api.call("GET", "/api/v1/task-groups"))
    timed("sign in", stack.api)
    key = timed("key", lambda: api.call("POST", "/api/v1/api-keys", {"name": name}))
    timed("end of a key", lambda: api.call("DELETE", f"/api/v1/api-keys/{key['id']}"))
    model = str(stack.data_dir / "models" / "tiny.gguf")
    service = {"name": name, "task": {"image": IMAGE, "gpu_required": 0, "model_path": model}}
    group = timed("service", lambda: api.call("POST", "/api/v1/task-groups", service))
    address = f"/api/v1/task-groups/{group['id']}"
    timed("stop", lambda: api.call("POST", f"{address}/stop"))
    timed("delete", lambda: api.call("DELETE", address))
    timed("ready", lambda: api.call("GET", "/readyz"))
    timed("join", lambda: join_with_a_wrong_token(stack))


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
    assert refused.value.code in (403, 429)
