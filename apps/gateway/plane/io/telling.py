"""Says what this process serves and what is in flight, for those who put replicas to sleep (SLEEP-06).

Owns when it is said: each second where it has changed, now and then where it has not. What is said is one
instant of the event loop. A word that can not be stored is said anew, with all that came meanwhile; until
then nobody puts to sleep what this process may use. Never holds up a call.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.tables import Tables
from apps.routing.load import Load

log = logging.getLogger("heteroflow.gateway")


class Listener(Protocol):
    """Who takes the words of this process. Raises any Exception while that fails."""

    async def say(self, load: Load, *, left: bool = False) -> None: ...


class Teller:
    """`run` until cancelled, then `leave` once no call runs any more. `clock`: epoch seconds."""

    def __init__(
        self,
        listener: Listener,
        tables: Tables,
        choosing: Choosing,
        config: GatewayConfig,
        clock: Callable[[], float],
    ) -> None:
        self._listener = listener
        self._tables = tables
        self._choosing = choosing
        self._live = choosing.live
        self._config = config
        self._clock = clock
        self._used: dict[str, float] = {}
        self._said: Load | None = None
        self._said_at = 0.0
        self._failing = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._config.load_say_s)
            await self.tell()

    async def tell(self) -> None:
        """Says it, unless nothing has changed and it was said lately."""
        load = self._look()
        if load != self._said or time.monotonic() - self._said_at >= self._config.load_repeat_s:
            await self._say(load, left=False)

    async def leave(self) -> None:
        """The last word: nothing is in flight here and nothing will be."""
        await self._say(self._look(), left=True)

    def _look(self) -> Load:
        now = self._clock()
        since = now - self._config.load_keep_s
        kept = {group_id: at for group_id, at in self._used.items() if at >= since}
        self._used = kept | dict.fromkeys(self._live.take_asked(), now)
        table = self._tables.current
        return Load(
            version=0 if table is None else table.version,
            in_flight=dict(self._live.in_flight),
            held=dict(self._live.held),
            used=self._used,
            backends=self._choosing.words(),
        )

    async def _say(self, load: Load, *, left: bool) -> None:
        began = time.monotonic()
        try:
            await self._listener.say(load, left=left)
        except Exception as error:
            if not self._failing:
                log.warning("what is in flight here can't be told just now: %s", type(error).__name__)
            self._failing = True
            return
        self._failing = False
        self._said, self._said_at = load, began
