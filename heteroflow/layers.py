"""Channel layer of the embedded profile: in memory, and safe across threads.

Channels' own in-memory layer puts a message into a queue of another thread's event loop without
waking that loop; a message from a worker thread then waits for the loop's next event. Here every
channel belongs to the loop that made it, and a message from elsewhere is handed to that loop. At
most once, one process: receivers re-read rows, a lost message only delays them.
"""

import asyncio
import secrets
import threading
from copy import deepcopy
from typing import Any

from channels.exceptions import ChannelFull
from channels.layers import BaseChannelLayer

Message = dict[str, Any]


class _Box:
    """The messages that wait for one channel, and the loop of whoever receives them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Message] = asyncio.Queue(maxsize=capacity)

    def put(self, message: Message) -> None:
        """In the box's own loop only. What does not fit is lost (at most once)."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            pass  # its receiver is far behind; it finds the rows when it gets there


class LoopAwareInMemoryLayer(BaseChannelLayer):
    """Channels and groups of one process, for any number of threads with loops of their own."""

    extensions = ["groups", "flush"]

    def __init__(
        self,
        expiry: int = 60,
        capacity: int = 100,
        channel_capacity: dict[str, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(expiry, capacity, channel_capacity)
        self.channel_capacity = self.compile_capacities(channel_capacity or {})
        self._lock = threading.Lock()  # guards the two tables; never held while waiting
        self._boxes: dict[str, _Box] = {}
        self._groups: dict[str, set[str]] = {}

    async def new_channel(self, prefix: str = "specific") -> str:
        """A channel that only the calling loop receives from."""
        name = f"{prefix}.inmemory!{secrets.token_hex(8)}"
        self._box(name)
        return name

    async def send(self, channel: str, message: Message) -> None:
        """Raises ChannelFull only towards a receiver of the same loop; elsewhere it is lost."""
        self.require_valid_channel_name(channel)
        box = self._boxes.get(channel)
        if box is None:
            if "!" in channel:
                return  # its receiver is gone
            box = self._box(channel)
        copy = deepcopy(message)
        if box.loop is asyncio.get_running_loop():
            if box.queue.full():
                raise ChannelFull(channel)
            box.put(copy)
            return
        try:
            box.loop.call_soon_threadsafe(box.put, copy)
        except RuntimeError:  # that loop is closed, and its receiver with it
            self._forget(channel)

    async def receive(self, channel: str) -> Message:
        """The next message. A receiver that gives up, stands in no group and has nothing waiting is
        taken for gone: its channel is forgotten."""
        self.require_valid_channel_name(channel)
        box = self._box(channel)
        try:
            return await box.queue.get()
        except asyncio.CancelledError:
            if box.queue.empty() and not self._in_a_group(channel):
                self._forget(channel)
            raise

    async def group_add(self, group: str, channel: str) -> None:
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        with self._lock:
            self._groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group: str, channel: str) -> None:
        self.require_valid_group_name(group)
        with self._lock:
            self._leave(group, channel)

    async def group_send(self, group: str, message: Message) -> None:
        self.require_valid_group_name(group)
        with self._lock:
            members = list(self._groups.get(group, ()))
        for channel in members:
            try:
                await self.send(channel, message)
            except ChannelFull:
                pass  # that receiver alone misses it

    async def flush(self) -> None:
        with self._lock:
            self._boxes.clear()
            self._groups.clear()

    async def close(self) -> None:
        """Nothing to give back."""

    def _box(self, channel: str) -> _Box:
        loop = asyncio.get_running_loop()
        with self._lock:
            box = self._boxes.get(channel)
            if box is None or (box.loop is not loop and box.loop.is_closed()):
                box = self._boxes[channel] = _Box(loop, self.get_capacity(channel))
            return box

    def _in_a_group(self, channel: str) -> bool:
        with self._lock:
            return any(channel in members for members in self._groups.values())

    def _forget(self, channel: str) -> None:
        with self._lock:
            self._boxes.pop(channel, None)
            for group in list(self._groups):
                self._leave(group, channel)

    def _leave(self, group: str, channel: str) -> None:
        members = self._groups.get(group)
        if members is not None:
            members.discard(channel)
            if not members:
                del self._groups[group]
