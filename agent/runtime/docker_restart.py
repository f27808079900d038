"""Starts a container that was stopped and kept once more, in a thread of its own (SLEEP-02).

Owns the way from a stopped container to a running one: the same container, with its paths held still again
while Docker binds them (`docker_pins.py`). Makes no container, and removes none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agent.contract.codes import Code, reason
from agent.models.mounts import HostMount
from agent.models.paths import PathRefused, PathRules, check_path
from agent.runtime.base import Instance, KeptLost, PortBusy, StartRefused
from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_labels import SOURCES
from agent.runtime.docker_pins import Pins
from agent.runtime.docker_watch import RUNNING
from agent.runtime.docker_words import Trouble

log = logging.getLogger("agent.runtime")
AGAIN_S = 0.5


class RestartJob:
    """One try. `outcome` is there once `done` is set."""

    def __init__(
        self,
        instance: Instance,
        *,
        docker: Docker,
        pins: Path,
        rules: PathRules,
        on_running: Callable[[str], None],
    ) -> None:
        self.done = threading.Event()
        self.outcome: Instance | KeptLost | PortBusy | StartRefused | None = None
        self._instance = instance
        self._docker = docker
        self._pins_folder = pins
        self._pins = Pins(pins)
        self._rules = rules
        self._on_running = on_running
        self._abandoned = threading.Event()
        threading.Thread(target=self._run, name=f"restart {instance.task_id}", daemon=True).start()

    def abandon(self) -> None:
        """Try no more; `done` tells when that is so."""
        self._abandoned.set()

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    self._start()
                    self.outcome = self._instance
                    break
                except NoAnswer as error:
                    log.warning("%s: not started again yet (%s)", self._instance.task_id, error)
                    self._abandoned.wait(AGAIN_S)
        except DockerRefused as error:
            words = msgspec.structs.replace(error.words, text=self._pins.named(error.words.text))
            busy = words.trouble is Trouble.PORT_BUSY
            self.outcome = PortBusy(int(words.subject)) if busy else KeptLost(words.text)
        except PathRefused as error:
            self.outcome = KeptLost(str(error))
        except OSError as error:
            self.outcome = KeptLost(f"its paths can't be held still: {error.strerror}")
        except Exception:
            log.exception("%s: starting it again failed", self._instance.task_id)
            self.outcome = StartRefused(reason(Code.INTERNAL))
        finally:
            self._pins.release()
            self.done.set()
            self._docker.close()

    def _start(self) -> None:
        """Raises NoAnswer, DockerRefused, PathRefused or OSError."""
        with told():
            there = self._docker.api.inspect_container(self._instance.name)
        if there["State"]["Status"] not in RUNNING:
            self._hold(there)
            with told():
                self._docker.api.start(self._instance.name)
        self._on_running(self._instance.name)
        log.info("started %s again as container %s", self._instance.task_id, self._instance.name[:12])

    def _hold(self, there: dict[str, Any]) -> None:
        """The container names places of ours; each must lead again to where it led when it was made."""
        sources = msgspec.json.decode((there["Config"].get("Labels") or {}).get(SOURCES, "{}"), type=dict)
        self._pins.release()
        for mount in there["HostConfig"].get("Mounts") or []:
            place, source = Path(str(mount["Source"])), str(sources.get(mount["Target"], ""))
            if place.parent != self._pins_folder:
                continue
            check_path(source, self._rules)
            self._pins.hold(HostMount(source, str(mount["Target"])), str(mount["Target"]), place=place)
