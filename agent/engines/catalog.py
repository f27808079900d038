"""The catalog of engines: names, the engine that an image name tells, and what a GPU type is for (ENG-01,
ENG-02).

Owns the registry. Never looks at a node: what is available there is
reported by its agent and passed in by whoever chooses.
"""

import re

from agent.engines import llamacpp, vllm
from agent.engines.base import Engine

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (vllm.ENGINE, llamacpp.ENGINE)}

# Every name that may be asked for or read from an image; those without an entry in ENGINES are
# known by name only and no agent can start them yet.
ENGINE_NAMES = ("vllm", "sglang", "llamacpp", "trtllm", "mindie", "vllm-mtt")

# Tried in this order: the longer name before the one that it contains.
IMAGE_KEYWORDS: tuple[tuple[str, str], ...] = (
    ("vllm-mtt", "vllm-mtt"),
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("llamacpp", "llamacpp"),
    ("llama.cpp", "llamacpp"),
    ("trtllm", "trtllm"),
    ("tensorrt-llm", "trtllm"),
    ("mindie", "mindie"),
)


# Named by PAR-02: a pipeline over several nodes is not for them, whatever starts them.
SINGLE_NODE_ENGINES = frozenset({"mindie", "trtllm"})
# The engines of a maker's cards, in their order, where neither task nor image tells one.
_CHAINS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"ascend|\b(?:910|310)", re.IGNORECASE), ("mindie",)),
)


def chain_of_type(gpu_type: str) -> tuple[str, ...]:
    """The engines that a GPU type's name tells; empty where it tells none by itself."""
    return next((chain for pattern, chain in _CHAINS if pattern.search(gpu_type)), ())


def get_engine(name: str) -> Engine | None:
    """The engine of that name, or None where no command builder exists for it."""
    return ENGINES.get(name)


def engine_from_image(image: str) -> str | None:
    """The engine that an image's name tells, None when it tells none (ENG-02).

    Only repository and tag count: a registry host or a digest that happens to hold a keyword says
    nothing about the image.
    """
    name = image.strip().lower().split("@", 1)[0]
    host, slash, rest = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        name = rest
    for keyword, engine in IMAGE_KEYWORDS:
        if keyword in name:
            return engine
    return None


def compute_capability_at_least(value: str | None, minimum: str | None) -> bool | None:
    """Compare "8.9" with "7.5" as numbers; None when the card's value is unknown or unreadable."""
    if minimum is None:
        return True
    if value is None:
        return None
    try:
        return _as_pair(value) >= _as_pair(minimum)
    except ValueError:
        return None


def _as_pair(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)
