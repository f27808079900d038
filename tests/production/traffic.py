"""Light traffic while a part is killed: calls of the demo model and of the API, each with its outcome."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai

from apps.ops.rest import Api, ApiRefusal
from tests.fakes.tiny_model import ANSWER
from tests.production_stack import ProductionStack

PAUSE_S = 0.1


@dataclass
class Traffic:
    """What became of the calls. `clear`: refused with a status or a closed line, at once or while it
    ran; `wrong`: anything else, in words."""

    good: dict[str, int] = field(default_factory=lambda: {"model": 0, "api": 0})
    clear: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=lambda: {"model": 0.0, "api": 0.0})

    def note(self, kind: str, call: Callable[[], bool]) -> None:
        began = time.monotonic()
        try:
            if call():
                self.good[kind] += 1
            else:
                self.wrong.append(f"{kind}: another answer than the right one")
        except openai.APIStatusError as error:
            (self.clear if error.status_code in (502, 503) else self.wrong).append(f"{kind}: {error}")
        except openai.APIConnectionError as error:
            self.clear.append(f"{kind}: {type(error).__name__}")
        except ApiRefusal as error:
            (self.clear if error.status in (502, 503, 504) else self.wrong).append(f"{kind}: {error}")
        except OSError as error:
            self.clear.append(f"{kind}: {type(error).__name__}")
        finally:
            self.longest_s[kind] = max(self.longest_s[kind], time.monotonic() - began)


@contextmanager
def traffic_of(stack: ProductionStack) -> Iterator[Traffic]:
    """Two callers, until the block ends."""
    seen, stop = Traffic(), threading.Event()
    client, api = stack.openai(), stack.api()

    def ask_model() -> bool:
        answer = client.chat.completions.create(
            model=stack.model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
        )
        return answer.choices[0].message.content == ANSWER

    def ask_api() -> bool:
        return "items" in Api(api.base_url, api.access_token).call("GET", "/api/v1/task-groups")

    def run(kind: str, call: Callable[[], bool]) -> None:
        while not stop.wait(PAUSE_S):
            seen.note(kind, call)

    threads = [
        threading.Thread(target=run, args=arguments) for arguments in (("model", ask_model), ("api", ask_api))
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(40)
