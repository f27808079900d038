"""The traffic of a soak: members' calls, API reads and writes, services that come and go, a log followed.

Each kind is one thread that goes on until it is told to end. Owns what became of each call; judges nothing.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import openai
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from apps.ops.rest import Api, ApiRefusal
from tests.production_stack import ProductionStack

SIGN_IN_AGAIN_S = 300.0
SERVICE_S = 120.0  # for a service to run, or to be stopped
LOG_S = 20.0  # one following
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"

# Whether a fault, of a call that began and ended at these moments, is to be expected.
Excuse = Callable[[str, float, float], bool]


@dataclass
class Seen:
    """What became of the calls of one kind. `refused`: by status, or by the name of the fault; `excused`: of
    those that met something which the soak itself had killed."""

    durations_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    excused: int = 0


@dataclass
class Counted:
    """What the soak's own key was answered for: calls and the tokens that the answers named."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Traffic:
    """All threads of it. `take` gives what was seen since the last `take`."""

    def __init__(self, stack: ProductionStack, excuses: Excuse = lambda *_: False) -> None:
        self._stack = stack
        self._excuses = excuses
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self.counted = Counted()
        self._demo = stack.demo_group()
        self._cookie = _browser_session(stack)
        issued = stack.api().call("POST", "/api/v1/api-keys", {"name": "soak"})
        self.key_id: str = issued["id"]
        self._models = stack.openai(issued["key"])
        self._numbers = itertools.count(1)
        kinds: list[tuple[str, Callable[[Api], None], float]] = [
            ("plain", self._plain, 0.1),
            ("plain", self._plain, 0.1),
            ("stream", self._stream, 0.1),
            ("stream", self._stream, 0.1),
            ("api read", self._read, 0.2),
            ("api write", self._write, 1.0),
            ("service", self._service, 1.0),
            ("log", self._follow, 0.5),
        ]
        self._threads = [threading.Thread(target=self._go_on, args=kind, daemon=True) for kind in kinds]

    def start(self) -> None:
        """Begin; the first call of the key waits until the gateways know it."""
        for _ in range(100):
            try:
                self._plain(self._stack.api())
                break
            except openai.AuthenticationError:
                time.sleep(0.1)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No new call; those that run come to their end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(SERVICE_S + 30)

    def take(self) -> dict[str, Seen]:
        with self._lock:
            seen, self._seen = self._seen, {}
        return seen

    def _go_on(self, kind: str, act: Callable[[Api], None], pause_s: float) -> None:
        api, signed_in = self._stack.api(), time.monotonic()
        while not self._stop.wait(pause_s):
            if time.monotonic() - signed_in > SIGN_IN_AGAIN_S:
                api, signed_in = self._stack.api(), time.monotonic()
            began, fault = time.monotonic(), ""
            try:
                act(api)
            except openai.APIStatusError as error:
                fault = str(error.status_code)
            except ApiRefusal as error:
                fault = str(error.status)
            except (OSError, openai.OpenAIError, WebSocketException, WrongAnswer) as error:
                fault = f"{type(error).__name__}: {str(error)[:60]}"
            with self._lock:
                seen = self._seen.setdefault(kind, Seen())
                ended = time.monotonic()
                seen.durations_s.append(ended - began)
                if fault and self._excuses(fault, began, ended):
                    seen.excused += 1
                elif fault:
                    seen.refused[fault] += 1

    # --- what is done ---

    def _plain(self, api: Api) -> None:
        answer = self._models.chat.completions.create(
            model=self._stack.model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
        )
        self._count(answer.usage)

    def _stream(self, api: Api) -> None:
        usage = None
        for part in self._models.chat.completions.create(
            model=self._stack.model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = part.usage or usage
        self._count(usage)

    def _count(self, usage: openai.types.CompletionUsage | None) -> None:
        if usage is None:
            raise WrongAnswer("an answer without usage")
        with self._lock:
            self.counted.calls += 1
            self.counted.prompt_tokens += usage.prompt_tokens
            self.counted.completion_tokens += usage.completion_tokens

    def _read(self, api: Api) -> None:
        addresses = ("task-groups", "me", "api-keys", "sessions")
        api.call("GET", f"/api/v1/{addresses[next(self._numbers) % len(addresses)]}")

    def _write(self, api: Api) -> None:
        made = api.call("POST", "/api/v1/api-keys", {"name": f"soak-{next(self._numbers)}"})
        api.call("DELETE", f"/api/v1/api-keys/{made['id']}")

    def _service(self, api: Api) -> None:
        """One service from its making to its stop."""
        name = f"soak-{next(self._numbers)}"
        task = {"image": IMAGE, "gpu_required": 0, "model_path": self._demo["model_path"]}
        group = api.call("POST", "/api/v1/task-groups", {"name": name, "model_name": name, "task": task})
        address = f"/api/v1/task-groups/{group['id']}"
        self._await(api, address, "running")
        api.call("POST", f"{address}/stop")
        self._await(api, address, "stopped")
        api.call("DELETE", address)

    def _await(self, api: Api, address: str, status: str) -> None:
        give_up_at = time.monotonic() + SERVICE_S
        while (now := api.call("GET", address)["status"]) != status:
            if time.monotonic() > give_up_at:
                raise WrongAnswer(f"{now} instead of {status} after {SERVICE_S:g} s")
            time.sleep(0.3)

    def _follow(self, api: Api) -> None:
        """The demo's live log as the portal follows it, for some seconds."""
        task = self._demo["tasks"][0]["id"]
        address = f"{self._stack.base_url.replace('https', 'wss')}/ws/tasks/{task}/logs"
        headers = {"Cookie": self._cookie, "Origin": self._stack.base_url}
        with connect(address, ssl=self._stack.trust, additional_headers=headers, open_timeout=10) as line:
            give_up_at, read = time.monotonic() + LOG_S, 0
            while (left := give_up_at - time.monotonic()) > 0 and not self._stop.is_set():
                try:
                    read += len(json.loads(line.recv(timeout=min(left, 1.0)))["text"])
                except TimeoutError:
                    continue
            if not read:
                raise WrongAnswer("an empty log")


class WrongAnswer(Exception):
    """An answer that came and is not the right one."""


def _browser_session(stack: ProductionStack) -> str:
    """The cookie of the demo's member, as a browser gets it."""
    body = json.dumps({"username": "demo", "password": stack.member_password}).encode()
    request = urllib.request.Request(
        f"{stack.base_url}/api/v1/auth/session", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10, context=stack.trust) as answer:
        cookies = answer.headers.get_all("Set-Cookie", [])
    return next(cookie.partition(";")[0] for cookie in cookies if cookie.startswith("sessionid"))
