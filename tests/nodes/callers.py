"""Somebody who calls a model all the while that something happens to the machines behind it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.nodes.fleet import Fleet


@contextmanager
def callers(fleet: Fleet, model: str) -> Iterator[list[str]]:
    """Somebody calls the model again and again; what they got, an answer or an error."""
    got: list[str] = []
    enough = threading.Event()

    def call() -> None:
        while not enough.is_set():
            try:
                got.append(fleet.ask(model))
            except Exception as error:
                got.append(repr(error))
            enough.wait(0.1)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield got
    finally:
        enough.set()
        thread.join()
