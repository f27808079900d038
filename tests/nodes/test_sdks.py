"""The clients that callers have, against llama.cpp and vLLM in containers: openai for Python and for Node,
LangChain (GW-01, GW-02, GW-09, GW-12)."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_model import ANSWER
from tests.fakes.vllm.image import ANSWER as VLLM_ANSWER
from tests.nodes.fleet import CARDS, IMAGE, Fleet
from tests.nodes.servers import any_server
from tests.sdks import node, openai_python
from tests.sdks.asked import Asked
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

SLOWLY = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8000/fake", b'{"gap_s": 2.0}').status)
"""
REFUSED = {
    "unknown model": ["NotFoundError", 404, "model_not_found"],
    "no replica": ["InternalServerError", 503, "no_backend"],
    "not offered": ["BadRequestError", 400, "not_offered_by_engine"],
    "wrong key": ["AuthenticationError", 401, "invalid_api_key"],
}
# LangChain's are openai's, too; for chats it has names of its own.
LANGCHAINS = {
    "unknown model": "OpenAIModelNotFoundError",
    "no replica": "OpenAIAPIError",
    "not offered": "BadRequestError",
    "wrong key": "OpenAIAuthenticationError",
}
# Of each client; a wrong key leaves none.
RECORDS = {
    ("completed", "llama"): 4,
    ("completed", "vllm"): 4,
    ("completed", "vectors"): 1,
    ("refused", "nobody's"): 1,
    ("no_backend", "away"): 1,
    ("upstream_error", "llama"): 1,
    ("client_gone", "vllm"): 1,
}


@any_server
@pytest.mark.req("GW-01", "GW-02", "GW-09", "GW-12")
def test_each_client_sees_the_same_and_leaves_one_record_a_call(
    fleet: Fleet, vllm: str, tmp_path: Path
) -> None:
    from tests.sdks import langchain  # here, since it takes a second, which other tests needn't wait for

    folder = str(fleet.model.parent)
    cpu = {"image": IMAGE, "gpu_required": 0, "model_path": str(fleet.model)}
    card = {"image": vllm, "gpu_required": 1, "gpu_type": CARDS["two"], "model_path": folder}
    env = {"LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_POOLING": "mean"}
    tasks = {"llama": cpu, "vllm": card, "vectors": {**cpu, "env": env}}
    groups = {name: fleet.create(name, task) for name, task in tasks.items()}
    fleet.create("away", {**card, "gpu_type": "of which there is none"})
    for group in groups.values():
        fleet.await_running(group)
    for name in ("llama", "vllm"):
        fleet.await_answer(name)
    until(lambda: embeds(fleet), "the third is published")

    clients: dict[str, Callable[[Asked, str], Any]] = {
        "python": lambda asked, step: getattr(openai_python, step)(asked),
        "node": lambda asked, step: node.run(asked, step, tmp_path),
        "langchain": lambda asked, step: getattr(langchain, step)(asked),
    }
    keys = {name: fleet.member.call("POST", "/api/v1/api-keys", {"name": f"sdk-{name}"}) for name in clients}

    def all_do(step: str) -> dict[str, Any]:
        with ThreadPoolExecutor() as pool:
            running = {
                name: pool.submit(client, asked_by(fleet, keys[name]["key"]), step)
                for name, client in clients.items()
            }
            return {name: future.result() for name, future in running.items()}

    told = all_do("talk")
    assert set(told["python"]["listed"]) >= {"llama", "vllm", "vectors", "away"}
    by_langchain = {what: [LANGCHAINS[what], *error[1:]] for what, error in REFUSED.items()}
    assert told["python"].pop("errors") == told["node"].pop("errors") == REFUSED
    assert told["langchain"].pop("errors") == by_langchain
    assert told["python"] == told["node"] == told["langchain"], json.dumps(told, indent=1)
    for model, text, spoken in (("llama", ANSWER, 8), ("vllm", VLLM_ANSWER, 6)):
        seen = told["python"]["models"][model]
        prompted = seen["tokens"][0]
        assert prompted > 0
        assert seen == {
            "whole": text,
            "named": model,
            "tokens": [prompted, spoken],
            "stream": [text],  # and no usage, since nobody asked
            "stream with usage": [text, [prompted, spoken]],
            "completion": True,
        }
    assert told["python"]["embedding"] == 64

    fleet.machines["two"].run_inside(fleet.task(groups["vllm"])["id"], SLOWLY)
    assert all_do("leave") == dict.fromkeys(clients, "Hello")
    for name, key in keys.items():
        found = until(lambda key=key: records(fleet, key["id"], sum(RECORDS.values())), f"all of {name}'s")
        assert Counter(found) == RECORDS


def asked_by(fleet: Fleet, key: str) -> Asked:
    return Asked(
        base_url=f"{fleet.proxy.url}/v1",
        key=key,
        wrong_key="sk-00000000-0000-4000-8000-000000000000",
        models=["llama", "vllm"],
        vectors="vectors",
        away="away",
        slow="vllm",
        certificate=fleet.proxy.certificate,
    )


def embeds(fleet: Fleet) -> bool:
    with fleet.http() as http:
        asked = {"model": "vectors", "input": "hi"}
        headers = {"Authorization": f"Bearer {fleet.key}"}
        return http.post("/v1/embeddings", json=asked, headers=headers).status_code == 200


def records(fleet: Fleet, key_id: str, enough: int) -> list[tuple[str, str]]:
    """Ending and model of each call of a key, once there are enough."""
    query = f"SELECT ending, model FROM usage_usagerecord WHERE key_id = '{key_id}'"
    found = [(str(ending), str(model)) for ending, model in fleet.stack.rows(query)]
    return found if len(found) >= enough else []
