"""What each client is asked for, and the shape in which it tells what it saw."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai

Talk = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """`models` serve chats, the first of them no embeddings; `vectors` serves those; `away` has no replica;
    `slow` takes seconds from word to word."""

    base_url: str
    key: str
    wrong_key: str
    models: list[str]
    vectors: str
    away: str
    slow: str
    certificate: Path

    def http(self) -> httpx2.Client:
        """Believes that certificate and nothing else."""
        trust = ssl.create_default_context(cafile=str(self.certificate))
        return httpx2.Client(verify=trust, trust_env=False)


def broken(words: Iterator[str]) -> list[str]:
    """What came of a stream before it failed, and the SDK's own class and code of the failure."""
    came = ""
    try:
        for word in words:
            came += word
    except openai.APIError as error:
        return [came, type(error).__name__, str(error.code)]
    return [came]


def error_of(call: Callable[[], Any]) -> list[Any]:
    """The SDK's own class, status and code of what a call fails with."""
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    return []
