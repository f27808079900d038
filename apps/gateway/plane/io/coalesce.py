"""Asks the same question only once at a time, however many wait for the answer."""

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Asking(Generic[K, V]):
    """Answers are not kept. A waiter that is cancelled leaves the question running for the others."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}

    async def ask(self, key: K, question: Coroutine[Any, Any, V]) -> V:
        """The answer to `question`, or to the one that is already being asked for `key`.

        Raises what the question raises, in every waiter.
        """
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(question)
            self._running[key] = task
            task.add_done_callback(lambda ended: self._end(key, ended))
        else:
            question.close()
        return await asyncio.shield(task)

    def _end(self, key: K, task: "asyncio.Task[V]") -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # seen, even when every waiter has gone
