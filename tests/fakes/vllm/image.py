"""The fake vLLM as a Docker image, and how its orders are given."""

import json
import urllib.request
from pathlib import Path

from tests.fakes.vllm.program import ORDERS, PLAN
from tools.engine_image import build

# The name tells the engine, as the catalog reads images.
TAG = "example/vllm-openai:fake"
PROGRAM = Path(__file__).with_name("program.py")
CHANGES = ["ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1", "EXPOSE 8000", "WORKDIR /"]
ANSWER = "Hello from the fake vllm."


def build_fake_vllm(socket: str, tag: str = TAG) -> str:
    """Build it into this engine, where `vllm` is the program; the tag."""
    build(socket, tag, app=PROGRAM, package=None, changes=CHANGES, place="usr/local/bin/vllm")
    return tag


def order(port: int, **changes: object) -> None:
    """Have the running one behave otherwise, over its restarts too."""
    body = json.dumps(changes).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/fake", body, timeout=10) as answer:
        assert answer.status == 200


def order_next(model: Path, **changes: object) -> None:
    """Have the next starts of an engine with this model folder be so, whatever was ordered before."""
    (model / ORDERS).write_text(json.dumps({**PLAN, **changes}))
