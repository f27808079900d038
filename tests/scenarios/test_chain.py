"""From a request for a service to an answered call, and back to nothing: real server, agent, engine.

Everything that a user sees is asked over HTTP; rows are read only where a promise is about rows.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from apps.ops.rest import ApiRefusal
from tests.fakes.tiny_model import ANSWER
from tests.stack import Stack, clean_environment, until
from tests.steady import steady_clock_of

Make = Callable[..., dict[str, Any]]
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


@pytest.fixture
def make_service(running_server: Stack) -> Iterator[Make]:
    """`make_service(name)`: a running service of the tiny model; deleted afterwards."""
    api, made = running_server.api(), []

    def make(name: str, **fields: Any) -> dict[str, Any]:
        model = str(running_server.data_dir / "models" / "tiny.gguf")
        task = {"image": IMAGE, "gpu_required": 0, "model_path": model}
        group = api.call("POST", "/api/v1/task-groups", {"name": name, "task": task, **fields})
        made.append(group["id"])
        assert group["status"] == "pending"
        until(lambda: read(group["id"])["status"] == "running", f"{name} runs")
        return dict(group)

    def read(group_id: str) -> dict[str, Any]:
        return dict(api.call("GET", f"/api/v1/task-groups/{group_id}"))

    yield make
    for group_id in made:
        try:
            api.call("DELETE", f"/api/v1/task-groups/{group_id}")
        except ApiRefusal as refusal:
            assert refusal.status == 404


@pytest.mark.req("OPS-01", "GW-09")
def test_official_sdk_streams_from_the_chain(running_server: Stack) -> None:
    stream = running_server.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=16
    )
    parts = list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER
    assert parts[-1].choices[0].finish_reason == "stop"
    assert {part.model for part in parts} == {"tiny"}
    assert all(part.usage is None for part in parts)  # asked of the engine, hidden from who did not ask


def test_usage_in_the_stream_for_who_asks(running_server: Stack) -> None:
    stream = running_server.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=16,
    )
    usages = [part.usage for part in stream if part.usage is not None]
    assert [usage.completion_tokens for usage in usages] == [8]


def test_whole_answers(running_server: Stack) -> None:
    assert running_server.ask() == ANSWER
    completion = running_server.openai().completions.create(model="tiny", prompt="hi", max_tokens=16)
    assert completion.choices[0].text.strip()
    assert completion.model == "tiny"


def test_models_are_the_ones_of_this_key(running_server: Stack) -> None:
    assert "tiny" in [model.id for model in running_server.openai().models.list()]


def test_embeddings_of_an_engine_that_offers_none(running_server: Stack) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        running_server.openai().embeddings.create(model="tiny", input="hi")
    assert (refused.value.status_code, refused.value.code) == (400, "not_offered_by_engine")


def test_embeddings_where_the_engine_has_them(running_server: Stack, make_service: Make) -> None:
    make_service("vectors", task=embedding_task(running_server))
    answer = until(lambda: _embed(running_server), "the route is published")
    assert len(answer.data[0].embedding) == 64


def embedding_task(stack: Stack) -> dict[str, Any]:
    model = str(stack.data_dir / "models" / "tiny.gguf")
    env = {"LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_POOLING": "mean"}
    return {"image": IMAGE, "gpu_required": 0, "model_path": model, "env": env}


def _embed(stack: Stack) -> Any:
    try:
        return stack.openai().embeddings.create(model="vectors", input="hi")
    except openai.APIStatusError as error:
        assert error.status_code in (404, 503), error
        return None


def test_unknown_model_and_unknown_key(running_server: Stack) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        running_server.openai().chat.completions.create(model="nope", messages=[])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as unknown:
        running_server.openai("sk-00000000-0000-4000-8000-000000000000").models.list()
    assert unknown.value.code == "invalid_api_key"


@pytest.mark.req("GW-12")
def test_every_request_leaves_one_record(running_server: Stack) -> None:
    api = running_server.api()
    issued = api.call("POST", "/api/v1/api-keys", {"name": "counted"})
    client = running_server.openai(issued["key"])
    for stream in (False, True, False, True, True):
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=16, stream=stream
        )
        if stream:
            assert list(answer)  # type: ignore[call-overload]

    def records() -> list[tuple[Any, ...]]:
        query = "SELECT stream, http_status, completion_tokens FROM usage_usagerecord WHERE key_id = ?"
        return running_server.rows(query, issued["id"])

    until(lambda: len(records()) >= 5, "the records are rows")
    assert sorted(records()) == [(0, 200, 8)] * 2 + [(1, 200, 8)] * 3


@pytest.mark.req("TEN-06", "GW-02")
def test_revoked_key_is_refused_within_two_seconds(running_server: Stack) -> None:
    api = running_server.api()
    issued = api.call("POST", "/api/v1/api-keys", {"name": "short-lived"})
    client = running_server.openai(issued["key"])
    assert client.models.list().data

    def refused() -> bool:
        try:
            client.models.list()
        except openai.AuthenticationError:
            return True
        return False

    with steady_clock_of(running_server) as clock:
        api.call("DELETE", f"/api/v1/api-keys/{issued['id']}")
        clock.within(2.0, refused, lambda: "the key is refused")


@pytest.mark.req("SVC-12", "LIFE-05")
def test_stop_and_delete_leave_nothing(running_server: Stack, make_service: Make) -> None:
    api = running_server.api()
    before = {process.pid for process in running_server.engines()}
    group = make_service("passing")
    task = api.call("GET", f"/api/v1/task-groups/{group['id']}")["tasks"][0]
    engine = [process for process in running_server.engines() if process.pid not in before]
    assert engine
    assert held(running_server, task["id"]) == (1, 1)

    api.call("POST", f"/api/v1/task-groups/{group['id']}/stop")
    until(lambda: api.call("GET", f"/api/v1/tasks/{task['id']}")["status"] == "stopped", "it is stopped")
    until(lambda: not any(process.is_running() for process in engine), "its process is gone")
    assert held(running_server, task["id"]) == (0, 0)
    # A drain waits for its gateways no longer than its deadline: on a busy machine one may learn of it later.
    until(lambda: refusal_of(running_server, "passing") in (404, 503), "callers are told of it")

    api.call("DELETE", f"/api/v1/task-groups/{group['id']}")
    with pytest.raises(ApiRefusal) as missing:
        api.call("GET", f"/api/v1/task-groups/{group['id']}")
    assert missing.value.status == 404
    until(
        lambda: not running_server.rows("SELECT 1 FROM workloads_taskgroup WHERE public_id = ?", group["id"]),
        "its rows are gone",
    )


def refusal_of(stack: Stack, model: str) -> int:
    """The status with which a call of this model is refused."""
    with pytest.raises(openai.APIStatusError) as refused:
        stack.openai().chat.completions.create(model=model, messages=[])
    return refused.value.status_code


def held(stack: Stack, task_id: str) -> tuple[int, int]:
    """How many ports and live claims a task holds."""
    ports = stack.rows("SELECT count(*) FROM fleet_port WHERE owner = ?", task_id)
    claims = stack.rows(
        "SELECT count(*) FROM workloads_claim c JOIN workloads_task t ON t.id = c.task_id"
        " WHERE t.public_id = ? AND c.released_at IS NULL",
        task_id,
    )
    return int(ports[0][0]), int(claims[0][0])


def test_the_printed_curl_works(running_server: Stack) -> None:
    """As a person would: the two lines and the curl, pasted into a shell."""
    text = running_server.printed()
    lines = re.findall(r"export (?:OPENAI_|SSL_)\S+", text)
    curl = text[text.index("curl $OPENAI") :].split("\n\n")[0].replace("localhost", "127.0.0.1")
    done = subprocess.run(
        ["sh", "-c", "\n".join([*lines, curl])],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ANSWER in done.stdout
