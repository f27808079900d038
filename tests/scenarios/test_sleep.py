"""A service sleeps, wakes and scales, by the API and as callers see it (SLEEP-01, -02, LIFE-04)."""

from typing import Any

import openai
import pytest

from tests.fakes.tiny_model import ANSWER
from tests.scenarios.test_chain import Make
from tests.scenarios.test_chain import make_service as make_service  # no __all__: that would hide the tests
from tests.stack import Stack, until

pytestmark = pytest.mark.req("SLEEP-01", "SLEEP-02", "LIFE-04")


def ask(stack: Stack, model: str) -> str:
    """Its answer, or the code of the refusal."""
    with stack.openai() as sdk:
        return ask_by(sdk, model)


def ask_by(sdk: openai.OpenAI, model: str) -> str:
    try:
        answer = sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=16
        )
    except openai.APIStatusError as refused:
        return str(refused.status_code)
    return answer.choices[0].message.content or ""


def test_a_service_sleeps_and_wakes(running_server: Stack, make_service: Make) -> None:
    api, group = running_server.api(), make_service("sleeper")

    def task() -> dict[str, Any]:
        (only,) = api.call("GET", f"/api/v1/task-groups/{group['id']}")["tasks"]
        return dict(only)

    before = task()
    where = f"/api/v1/tasks/{before['id']}"
    until(lambda: ask(running_server, "sleeper") == ANSWER, "it answers")
    slept = api.call("POST", f"{where}/sleep")
    assert slept["status"] in ("draining", "sleeping") and slept["text"] and slept["next"], slept
    until(lambda: task()["status"] == "sleeping", lambda: str(task()))
    until(lambda: ask(running_server, "sleeper") == "503", "callers are told")
    assert task()["node"] == before["node"]  # its place stays
    assert api.call("POST", f"{where}/sleep")["status"] == "sleeping"  # asked twice
    woken = api.call("POST", f"{where}/wake?wait=60")
    assert woken["text"] and woken["next"], woken
    until(lambda: task()["status"] == "running", lambda: str(task()))
    assert task()["attempt"] == before["attempt"]  # the same one, not one made anew
    until(lambda: ask(running_server, "sleeper") == ANSWER, "it answers again")


def test_a_sleeper_can_be_stopped(running_server: Stack, make_service: Make) -> None:
    api, group = running_server.api(), make_service("sleeps-for-good")
    where = f"/api/v1/task-groups/{group['id']}"
    (task,) = api.call("GET", where)["tasks"]
    api.call("POST", f"/api/v1/tasks/{task['id']}/sleep")
    until(lambda: api.call("GET", where)["status"] == "sleeping", "it sleeps")
    api.call("POST", f"{where}/stop")
    until(lambda: api.call("GET", where)["status"] == "stopped", "it is stopped")


def test_a_service_is_scaled_by_hand(running_server: Stack, make_service: Make) -> None:
    api, group = running_server.api(), make_service("scaled", max_replicas=2)
    where = f"/api/v1/task-groups/{group['id']}"

    def states() -> list[str]:
        return sorted(task["status"] for task in api.call("GET", where)["tasks"])

    assert api.call("PUT", f"{where}/scale", {"replicas": 2})["replicas"]["current"] == 2
    until(lambda: states() == ["running", "running"], lambda: str(states()))
    api.call("PUT", f"{where}/scale", {"replicas": 1})
    until(lambda: states().count("running") == 1 and "draining" not in states(), lambda: str(states()))
    until(lambda: ask(running_server, "scaled") == ANSWER, "it answers with one")
