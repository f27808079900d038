"""Real threads for tests of locking: each with its own database connection, all started at once."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection


def run_at_once(count: int, work: Callable[[int], Any], timeout_s: float = 60) -> list[Any]:
    """Run `work(number)` in `count` threads that start together; results in order.

    An exception of a thread is raised here. Connections are closed by the threads that made them.
    """
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            barrier.wait(timeout_s)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), "a thread still waits"
    if errors:
        raise errors[0]
    return results
