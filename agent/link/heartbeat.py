"""The heartbeat: says what this node is and has, takes the desired list (AGENT-01).

Owns the loop and the message. A failed, slow or unreadable answer changes nothing here: the held
list stays as it is, engines go on (AGENT-14).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from agent.config import Settings
from agent.contract.codes import Code
from agent.contract.messages import (
    CardReport,
    DialTarget,
    DoorTarget,
    EngineReport,
    FileOrder,
    HeartbeatAnswer,
    HeartbeatRequest,
    HostReport,
    RunningReport,
)
from agent.errors import ServerRefused, ServerUnreachable, Superseded
from agent.identity import Incarnation
from agent.supervisor.desired import DesiredList

log = logging.getLogger("agent.link")
CLOSEST_S = 0.1  # however often the server says "look", no more than this
# A join token that is given beside a stored identity is not looked at, so that a restart can keep its line.
REJOIN = "; to join anew, stop the agent, remove identity.json in its state_dir, start it with a new token"


class Readings(Protocol):
    """What is measured on this node (`agent.node.NodeReadings`)."""

    async def cards(self) -> tuple[list[CardReport], bool]:
        """The cards, and whether they are unknown now."""
        ...

    def host(self) -> HostReport: ...

    def ports_in_use(self) -> list[int]: ...

    def engines(self, cards: list[CardReport]) -> list[EngineReport]: ...

    def images(self) -> list[str] | None: ...

    def volume_prefixes(self) -> list[str]: ...

    def host_ipc(self) -> bool: ...

    def runtime_silent(self) -> bool:
        """Whether what runs containers does not answer."""
        ...


class Heartbeat:
    """`look` sends one now; `run` sends for ever. Raises Superseded out of `run`."""

    def __init__(
        self,
        *,
        settings: Settings,
        incarnation: Incarnation,
        machine_id: str,
        agent_version: str,
        dial: DialTarget | DoorTarget,
        send: Callable[[HeartbeatRequest], Awaitable[HeartbeatAnswer]],
        readings: Readings,
        desired: DesiredList,
        running: Callable[[], list[RunningReport]],
        on_change: Callable[[], None],
        on_files: Callable[[list[FileOrder]], None],
        on_released: Callable[[list[str]], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._machine_id = machine_id
        self._agent_version = agent_version
        self._dial = dial
        self._send = send
        self._readings = readings
        self._desired = desired
        self._running = running
        self._on_change = on_change
        self._on_files = on_files
        self._on_released = on_released
        self._wall = wall
        self._sequence = 0
        self._engines: list[EngineReport] = []
        self._images: list[str] | None = None
        self._silent = False
        self._trouble = ""
        self._look = asyncio.Event()
        # Told to the agent's metrics: what came back, when the last answer did (monotonic seconds), and
        # the cards of the last message with whether they were unknown. None = not yet.
        self.outcomes: Counter[str] = Counter()
        self.answered_at: float | None = None
        self.cards: tuple[int, bool] | None = None

    def look(self) -> None:
        """Send a heartbeat now."""
        self._look.set()

    async def run(self) -> None:
        while True:
            self._look.clear()
            await self.beat()
            try:
                await asyncio.wait_for(self._look.wait(), self._settings.heartbeat_s)
                await asyncio.sleep(CLOSEST_S)
            except TimeoutError:
                continue

    async def beat(self) -> None:
        """Send one heartbeat and take its answer. Raises Superseded only."""
        try:
            answer = await self._send(await self._message())
        except ServerUnreachable as error:
            self.outcomes["no_answer"] += 1
            self._note(f"the server does not answer: {error}; what runs goes on", error.request_id)
        except ServerRefused as error:
            self.outcomes["refused"] += 1
            if error.status == 409 and error.code == Code.CLAIM_SUPERSEDED:
                raise Superseded(str(error)) from error
            way_out = REJOIN if error.status == 401 else ""
            self._note(f"the server refuses this node: {error}; what runs goes on{way_out}", error.request_id)
        else:
            self.outcomes["answered"] += 1
            self.answered_at = time.monotonic()
            if self._trouble:
                log.info("the server answers again")
                self._trouble = ""
            self._desired.take(answer)
            self._on_change()
            self._on_files(answer.file_orders)
            self._on_released(answer.released_cards)

    def _note(self, trouble: str, request_id: str) -> None:
        if trouble != self._trouble:
            log.warning("%s (request %s)", trouble, request_id)
        self._trouble = trouble

    async def _message(self) -> HeartbeatRequest:
        cards, unknown = await self._readings.cards()
        self.cards = (len(cards), unknown)
        silent = self._readings.runtime_silent()
        if silent:  # nothing can be started there
            self._engines, self._images = [], []
        elif self._silent or self._sequence % self._settings.engine_probe_heartbeats == 0:
            self._engines = self._readings.engines(cards)
            self._images = self._readings.images()
        self._silent = silent
        self._sequence += 1
        return HeartbeatRequest(
            incarnation=self._incarnation.id,
            started_at=self._incarnation.started_at,
            sequence=self._sequence,
            desired_hash=self._desired.hash,
            sent_at=self._wall(),
            machine_id=self._machine_id,
            runtime=self._settings.runtime,
            host=self._readings.host(),
            dial=self._dial,
            cards=cards,
            cards_unknown=unknown,
            engines=self._engines,
            running=self._running(),
            port_range=self._settings.port_range,
            ports_in_use=self._readings.ports_in_use(),
            agent_version=self._agent_version,
            volume_prefixes=self._readings.volume_prefixes(),
            host_ipc=self._readings.host_ipc(),
            images=self._images,
            runtime_silent=silent,
        )
