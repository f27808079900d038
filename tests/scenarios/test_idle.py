"""Services that nobody asks for fall asleep by themselves, and no call is lost by it (SLEEP-06): with real
gateways, a real agent and real engines."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import openai
import psutil
import pytest

from tests.fakes.tiny_model import ANSWER
from tests.scenarios.test_chain import Make
from tests.scenarios.test_chain import make_service as make_service  # no __all__: that would hide the tests
from tests.scenarios.test_sleep import ask, ask_by
from tests.stack import Stack, until

pytestmark = pytest.mark.req("SLEEP-06")

IDLE = 5  # what the stack takes for minutes are seconds
PATIENT = {"interval_seconds": 60, "timeout_seconds": 30, "unhealthy_threshold": 10}


class Idler:
    """A service that may fall asleep by itself, and what is known of it."""

    def __init__(self, stack: Stack, make: Make, name: str, idle: int = IDLE) -> None:
        self.stack, self.name, self.api = stack, name, stack.api()
        before = {process.pid for process in stack.engines()}
        self.group = make(name, idle_timeout_minutes=idle, health_check=PATIENT)["id"]
        (self.engine,) = [process for process in stack.engines() if process.pid not in before]
        (task,) = self.api.call("GET", f"/api/v1/task-groups/{self.group}")["tasks"]
        self.task = task["id"]

    def row(self) -> tuple[str, str]:
        """State and reason."""
        query = "SELECT state, reason_code FROM workloads_task WHERE public_id = ?"
        return tuple(self.stack.rows(query, self.task)[0])  # type: ignore[return-value]

    def codes(self) -> list[str]:
        """Why it moved, the newest last."""
        events = self.api.rows(f"/api/v1/task-groups/{self.group}/events")
        return [event["reason"]["code"] for event in events]

    def is_known(self) -> None:
        """Every gateway answers for it, whichever the front proxy asks next."""
        with ExitStack() as opened:
            gateways = [opened.enter_context(sdk) for sdk in self.stack.gateways()]
            until(lambda: {ask_by(sdk, self.name) for sdk in gateways} == {ANSWER}, f"{self.name} answers")

    def falls_asleep(self) -> None:
        until(lambda: self.row()[0] == "sleeping", lambda: f"{self.row()}\n{self.stack.printed()[-3000:]}")

    def wakes(self) -> None:
        self.api.call("POST", f"/api/v1/tasks/{self.task}/wake?wait=0")
        self.is_known()


@contextmanager
def called(stack: Stack, model: str) -> Iterator[list[str]]:
    """It is asked again and again, and each answer is kept."""
    stop, answers = threading.Event(), list[str]()

    def call() -> None:
        while not stop.is_set():
            answers.append(ask(stack, model))

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


@contextmanager
def held_up(engine: psutil.Process) -> Iterator[None]:
    """It takes calls and answers none."""
    engine.suspend()
    try:
        yield
    finally:
        engine.resume()


def test_only_what_nobody_asks_for_falls_asleep(running_server: Stack, make_service: Make) -> None:
    used = Idler(running_server, make_service, "in-use")
    waited: list[str] = []
    used.is_known()
    with called(running_server, "in-use") as answers:
        awaited = Idler(running_server, make_service, "waited-for")
        awaited.is_known()
        with running_server.openai() as sdk:
            # Its connection is there, so that the next call comes long before the other has been idle.
            assert ask_by(sdk, "waited-for") == ANSWER
            with held_up(awaited.engine):
                caller = threading.Thread(target=lambda: waited.append(ask_by(sdk, "waited-for")))
                caller.start()
                unused = Idler(running_server, make_service, "unused")
                unused.falls_asleep()
                # The three had the same time: the one is asked, on the other somebody waits.
                assert [used.row()[0], awaited.row()[0], waited] == ["running", "running", []]
            caller.join(30)
        assert waited == [ANSWER]
        assert "idle" in unused.codes()
        assert not {"idle", "still_used"} & {*used.codes(), *awaited.codes()}
    assert set(answers) == {ANSWER}
    used.falls_asleep()
    awaited.falls_asleep()
    used.wakes()


def test_a_call_in_the_moment_it_falls_asleep_is_answered_or_told(
    running_server: Stack, make_service: Make
) -> None:
    service = Idler(running_server, make_service, "dozing", idle=2)
    outcomes: list[tuple[str, str]] = []
    for _ in range(3):
        until(lambda: service.row()[0] != "running", lambda: f"it is idle: {service.row()}")
        said = ask(running_server, "dozing")
        until(lambda: service.row()[0] in ("running", "sleeping"), lambda: f"{service.row()}")
        outcomes.append((said, service.row()[0]))
        if said == "503":
            service.falls_asleep()
            service.wakes()
    # who came in time called it back, and who came too late was told so
    assert set(outcomes) <= {(ANSWER, "running"), ("503", "sleeping")}, (outcomes, service.codes())
    assert (ANSWER, "running") in outcomes, outcomes
    assert service.codes().count("still_used") == outcomes.count((ANSWER, "running"))


def test_a_sleeper_that_is_asked_for_says_who_can_wake_it(running_server: Stack, make_service: Make) -> None:
    service = Idler(running_server, make_service, "gone-to-bed", idle=1)
    service.falls_asleep()

    def told() -> str:
        """What it says without a time to come again."""
        with running_server.openai() as sdk, pytest.raises(openai.InternalServerError) as refused:
            sdk.chat.completions.create(model="gone-to-bed", messages=[{"role": "user", "content": "hi"}])
        body: Any = refused.value.body
        assert body["code"] == "no_backend"
        return "" if "Retry-After" in refused.value.response.headers else refused.value.message

    message = until(told, "the gateway knows")
    assert "asleep" in message and "wake" in message
