"""Light traffic while a part is killed: calls of a model and of the API, each with its outcome."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import openai

from apps.ops.rest import Api, ApiRefusal
from tests.fakes.tiny_model import ANSWER
from tests.stack import Stack

PAUSE_S = 0.1
KINDS = ("model", "api")


@dataclass
class Traffic:
    """What became of the calls. `clear`: refused with a status or a closed line, at once or while it
    ran; `wrong`: anything else. Both in words that begin with the kind."""

    good: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    clear: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, call: Callable[[], bool]) -> None:
        try:
            if call():
                self.good[kind] += 1
            else:
                self.wrong.append(f"{kind}: another answer than the right one")
        except openai.APITimeoutError as error:
            self.wrong.append(f"{kind}: {type(error).__name__}")
        except openai.APIStatusError as error:
            (self.clear if error.status_code in (502, 503) else self.wrong).append(f"{kind}: {error}")
        except openai.APIConnectionError as error:
            self.clear.append(f"{kind}: {type(error).__name__}")
        except ApiRefusal as error:
            (self.clear if error.status in (502, 503, 504) else self.wrong).append(f"{kind}: {error}")
        except TimeoutError as error:
            self.wrong.append(f"{kind}: {type(error).__name__}")
        except OSError as error:
            self.clear.append(f"{kind}: {type(error).__name__}")

    def failed(self, kind: str) -> list[str]:
        """The calls of a kind that were refused."""
        return [words for words in self.clear if words.startswith(kind)]

    def all_flow(self, since: dict[str, int], more: int) -> bool:
        """Whether each kind had that many more good answers."""
        return all(self.good[kind] >= since.get(kind, 0) + more for kind in KINDS)


def traffic_of(stack: Stack) -> AbstractContextManager[Traffic]:
    """Callers of a stack's demo model, and of the API as its member."""
    return traffic_by(stack.openai(), stack.model, stack.api())


@contextmanager
def traffic_by(client: openai.OpenAI, model: str, api: Api) -> Iterator[Traffic]:
    """A caller of the model and one of the API, until the block ends."""
    seen, stop = Traffic(), threading.Event()

    def ask_model() -> bool:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
        )
        return answer.choices[0].message.content == ANSWER

    def ask_api() -> bool:
        return "items" in Api(api.base_url, api.access_token).call("GET", "/api/v1/task-groups")

    def run(kind: str, call: Callable[[], bool]) -> None:
        while not stop.wait(PAUSE_S):
            seen.note(kind, call)

    threads = [
        threading.Thread(target=run, args=arguments)
        for arguments in zip(KINDS, (ask_model, ask_api), strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(40)
