"""All that a heartbeat tells about the node, read without holding up the loop.

Owns the memory of the last cards: when the driver does not answer they are repeated without
measured values and marked unknown, so that a driver's fault never looks like cards that vanished.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from agent.config import Settings, TpIpc
from agent.contract.messages import CardReport, EngineReport, HostReport
from agent.contract.states import RuntimeKind
from agent.gpu.cardgate import CardGate
from agent.gpu.cards import CardsUnknown, read_cards
from agent.gpu.host import listening_ports, read_host
from agent.runtime.base import Runtime

log = logging.getLogger("agent.gpu")


class NodeReadings:
    """Fills `agent.link.heartbeat.Readings`."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        gate: CardGate,
        read: Callable[[], list[CardReport]] = read_cards,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._gate = gate
        self._read = read
        self._last: list[CardReport] = []
        self._reading: asyncio.Future[list[CardReport]] | None = None
        self._trouble = ""
        psutil.cpu_percent(interval=None)  # its first answer is no measurement: each tells of the time since

    async def cards(self) -> tuple[list[CardReport], bool]:
        """The cards now; or those last known, without measured values, and True."""
        if self._reading is None:
            # A driver may hang for ever: one thread may wait for it, not one a heartbeat.
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait({self._reading}, timeout=self._settings.gpu_timeout_s)
        if not done:
            return self._unknown("the GPU driver does not answer in time")
        finished, self._reading = self._reading, None
        try:
            self._last = self._gate.look(finished.result(), time.monotonic())
        except CardsUnknown as error:
            return self._unknown(str(error))
        self._trouble = ""
        return self._last, False

    def _unknown(self, trouble: str) -> tuple[list[CardReport], bool]:
        if trouble != self._trouble:
            log.error("the cards are unknown: %s", trouble)
        self._trouble = trouble
        names = ("vram_used_mb", "temperature_c", "utilization_percent", "processes", "foreign_mb")
        blank = dict.fromkeys(names)
        return [msgspec.structs.replace(card, **blank) for card in self._last], True

    def host(self) -> HostReport:
        return read_host(Path(self._settings.state_dir))

    def ports_in_use(self) -> list[int]:
        return listening_ports(*self._settings.port_range)

    def engines(self, cards: list[CardReport]) -> list[EngineReport]:
        return self._runtime.probe_engines(cards)

    def images(self) -> list[str] | None:
        return self._runtime.engine_images()

    def runtime_silent(self) -> bool:
        return not self._runtime.answers()

    def volume_prefixes(self) -> list[str]:
        return list(self._settings.allowed_volume_prefixes)

    def host_ipc(self) -> bool:
        """Engines that are processes share the host's in any case."""
        return self._settings.runtime is RuntimeKind.PROCESS or self._settings.tp_ipc is TpIpc.HOST
