"""Starts that are given up at the worst moments: nothing of them may run on."""

import threading
from collections.abc import Callable

import pytest

from agent.runtime.base import Instance, Starting
from agent.runtime.docker_client import NoAnswer
from agent.runtime.docker_end import Ending
from agent.runtime.docker_pins import Pins
from agent.runtime.docker_start import StartJob
from agent.runtime.docker_watch import Watch
from tests.agent.docker.conftest import Bench, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker"), pytest.mark.req("AGENT-03", "LIFE-08")]
SLEEP = "import time; time.sleep(600)"


class Gate:
    """Holds one method up, after it did its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        own: Callable[..., object] = getattr(owner, name)

        def held_up(*args: object, **kwargs: object) -> object:
            answer = own(*args, **kwargs)
            self.reached.set()
            assert self.open.wait(60)
            return answer

        monkeypatch.setattr(owner, name, held_up)


def given_up(bench: Bench, task_id: str) -> None:
    """Ask until it is told gone; from then on nothing of it is there."""
    wait_for(lambda: bench.runtime.abandon(task_id, 1), "given up")
    assert bench.mine() == []
    wait_for(lambda: not bench.networks(), "its network is gone too")
    assert bench.runtime.abandon(task_id, 1) is True


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (StartJob, "_take_over"),
        (StartJob, "_make_network"),
        (StartJob, "_create"),
        (Watch, "track"),  # it runs
        (StartJob, "_instance"),
        (Pins, "release"),  # the start has seen that nobody gave it up, and has not said so yet
    ],
)
def test_given_up_in_the_midst(bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    # with mounts, places are let go before they are made too
    spec = bench.script(SLEEP) if owner is Pins else bench.engine()
    gate = Gate(monkeypatch, owner, name)
    assert isinstance(bench.runtime.start(spec), Starting)
    assert gate.reached.wait(60)
    assert bench.runtime.abandon(spec.task_id, 1) is False
    gate.open.set()
    given_up(bench, spec.task_id)


def test_given_up_after_it_was_through_and_before_anybody_asked(bench: Bench) -> None:
    spec = bench.script(SLEEP)
    assert isinstance(bench.runtime.start(spec), Starting)
    job = bench.runtime._jobs[spec.task_id, 1]
    assert job.done.wait(60) and isinstance(job.outcome, Instance)
    given_up(bench, spec.task_id)


def test_not_told_gone_while_docker_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.script(SLEEP)
    bench.runtime.start(spec)
    assert bench.runtime._jobs[spec.task_id, 1].done.wait(60)
    remove = Ending.remove_now
    silent = threading.Event()

    def unanswered(ending: Ending, container: str, task_id: str) -> None:
        if not silent.is_set():
            raise NoAnswer("away")
        remove(ending, container, task_id)

    monkeypatch.setattr(Ending, "remove_now", unanswered)
    assert bench.runtime.abandon(spec.task_id, 1) is False
    wait_for(bench.runtime.answers, "it looked again")
    assert bench.runtime.abandon(spec.task_id, 1) is False
    assert [row["State"] for row in bench.mine()] == ["running"]
    silent.set()
    given_up(bench, spec.task_id)
