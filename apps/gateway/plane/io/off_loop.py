"""Work on big texts in threads, since it would stop the loop. Owns that its number stays bounded."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def work_aside(places: asyncio.Semaphore, work: Callable[[], T]) -> T:
    """What the work answers, or raises. Who is cancelled meanwhile waits for its end: a thread can't be
    stopped, and goes on with all that it holds."""
    async with places:
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise
