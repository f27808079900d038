"""Calls to the Docker engine, with two kinds of failure only.

Owns connections: one a thread, since the SDK is synchronous. A failure is either DockerRefused (an
answer, read by docker_words) or NoAnswer, from which nothing may be concluded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException

from agent.runtime.docker_words import Trouble, Words, read_error


class NoAnswer(Exception):
    """Docker did not answer, or not in time. "No answer" is not "gone"."""


class DockerRefused(Exception):
    """Docker answered, and said no."""

    def __init__(self, words: Words) -> None:
        super().__init__(words.text)
        self.words = words


@contextmanager
def told(*, by_registry: bool = False) -> Iterator[None]:
    """Turn the SDK's exceptions into ours. `by_registry`: Docker passes on what a registry said.

    Raises NoAnswer or DockerRefused.
    """
    try:
        yield
    except APIError as error:
        text = str(error.explanation or error)
        words = read_error(type(error).__name__, error.status_code, text, by_registry=by_registry)
        if words.trouble is Trouble.NO_ANSWER:
            raise NoAnswer(words.text) from error
        raise DockerRefused(words) from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise NoAnswer(" ".join(str(error).split())[:300]) from error


class Docker:
    """Gives each thread its own client of one engine. Durations in seconds."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self.host = host
        self._timeout_s = timeout_s
        self._own = threading.local()

    @property
    def api(self) -> docker.APIClient:
        """This thread's client. Raises NoAnswer or DockerRefused where none can be made now."""
        known: docker.APIClient | None = getattr(self._own, "api", None)
        if known is None:
            with told():
                known = docker.APIClient(
                    base_url=self.host, version="auto", timeout=max(1, round(self._timeout_s))
                )
            self._own.api = known
        return known

    def close(self) -> None:
        """Close this thread's connections."""
        known: docker.APIClient | None = getattr(self._own, "api", None)
        if known is not None:
            known.close()
            self._own.api = None
