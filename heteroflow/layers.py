"""Channel layer of the embedded profile: in memory, and safe across threads.

Channels' own in-memory layer puts a message into a queue of another thread's event loop without
waking that loop; a message from a worker thread then waits for the loop's next event. Here it is
handed to the receiver's own loop.
"""

import asyncio
from typing import Any

from channels.layers import InMemoryChannelLayer


class LoopAwareInMemoryLayer(InMemoryChannelLayer):
    """At most once, one process; receivers resume from stored offsets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}

    async def new_channel(self, prefix: str = "specific.") -> str:
        name: str = await super().new_channel(prefix)
        self._loops[name] = asyncio.get_running_loop()
        return name

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        home = self._loops.get(channel)
        if home is None or home is asyncio.get_running_loop():
            await super().send(channel, message)
        elif not home.is_closed():
            asyncio.run_coroutine_threadsafe(super().send(channel, message), home)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        for channel in list(self.groups.get(group, ())):
            try:
                await self.send(channel, message)
            except Exception as error:  # a full queue loses this message only: at most once
                if type(error).__name__ != "ChannelFull":
                    raise
