"""What an engine is to HeteroFlow: its facts and its command line, as plain values.

Owns the shapes that each engine file fills in. Never starts anything, reads no file and no clock:
the server's catalog reads the same files as the agent's runtimes do (ENG-01).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from agent.contract.messages import PipelineStage


class EngineOptionError(ValueError):
    """An option in a service's environment that the engine's command line cannot carry."""

    def __init__(self, name: str, value: str, rule: str) -> None:
        super().__init__(f"{name}={value!r}: {rule}")
        self.name = name
        self.value = value
        self.rule = rule


class EngineCall(msgspec.Struct, frozen=True):
    """One wish for an engine: which model, under which name, where it listens.

    `options` are the service's own environment entries; a builder turns those that it knows into
    flags. `memory_percent` is the share of each card (None: the card alone). No secret stands
    here: the engine's key goes by environment (AGENT-17).
    """

    model_path: str
    served_model_name: str
    host: str
    port: int
    gpu_count: int = 0
    gpu_vendor: str = ""
    tensor_parallel: int = 1
    memory_percent: int | None = None
    threads: int | None = None
    options: dict[str, str] = {}
    sleep_enabled: bool = False  # it may be asked to give its card's memory back (SLEEP-01)
    stage: PipelineStage | None = None  # of engines that span nodes (PAR-03)


class ImageCommand(msgspec.Struct, frozen=True):
    """Command line for a container. `entrypoint` None keeps the image's own."""

    arguments: list[str]
    entrypoint: list[str] | None = None


class Metrics(msgspec.Struct, frozen=True):
    """Names in the engine's Prometheus text: a counter that rises with every step of work, the gauges of
    requests in work and in its queue, and that of its memory of tokens in use, 0 to 1 ("" = it doesn't say).
    The first two tell a busy engine from a stuck one, those of requests whether it may be put to sleep."""

    path: str
    progress_counter: str
    running_gauge: str
    waiting_gauge: str
    kv_gauge: str = ""


class Engine(Protocol):
    """One engine of the catalog. All methods are pure and raise EngineOptionError only."""

    name: str
    family: str  # engines of one family share flags and switches ("vllm" for vllm and vllm-mtt)
    vendors: tuple[str, ...]  # "cpu" where it runs without a card
    images: dict[str, str]  # vendor -> image with its exact tag
    min_compute_capability: str | None  # NVIDIA only; None = any
    default_port: int
    health_path: str
    loading_status: int | None  # HTTP status that means "still loading"; None = it does not listen yet
    can_sleep: bool
    start_percent: int | None  # the share of a card that it takes where none is told; None = it does not ask
    spans_nodes: bool  # it runs as the stages of a pipeline, one a node (PAR-03)
    key_variable: str  # environment variable that the engine reads its API key from
    option_variables: frozenset[str]  # entries of a service's environment that the builder reads
    metrics: Metrics

    def image_command(self, call: EngineCall) -> ImageCommand:
        """Command line inside the engine's image."""
        ...

    def process_arguments(self, call: EngineCall) -> list[str]:
        """Arguments after the program itself, for the process runtime."""
        ...


def whole_number(options: dict[str, str], name: str, default: int, *, low: int, high: int) -> int:
    """Read a whole number from the service's environment.

    Raises EngineOptionError when it is none or lies outside low..high.
    """
    text = options.get(name)
    if text is None or text == "":
        return default
    rule = f"must be a whole number from {low} to {high}"
    try:
        number = int(text)
    except ValueError:
        raise EngineOptionError(name, text, rule) from None
    if not low <= number <= high:
        raise EngineOptionError(name, text, rule)
    return number


def switch(options: dict[str, str], name: str) -> bool:
    """Read an on/off entry from the service's environment; absent is off.

    Raises EngineOptionError for anything but 1, true, on, yes, 0, false, off, no or nothing.
    """
    text = options.get(name, "").strip().lower()
    if text in ("1", "true", "on", "yes"):
        return True
    if text in ("", "0", "false", "off", "no"):
        return False
    raise EngineOptionError(name, options[name], "must be 1 or 0")
