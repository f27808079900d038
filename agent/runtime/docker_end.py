"""Ends and removes containers and their networks, in threads of its own.

Owns what is still to be removed: a removal that Docker did not answer is tried again until the thing
is gone. Touches only what it is told by id, and networks that bear this agent's label.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_labels import AGENT, TASK
from agent.runtime.docker_words import Trouble

log = logging.getLogger("agent.runtime")
SIGNAL_FOR_S = 30.0
AGAIN_S = 0.5


class Ending:
    """All methods but `remove_now`, `remove_networks` and `remove_stray_networks` return at once."""

    def __init__(self, docker: Docker, agent: str) -> None:
        self._docker = docker
        self._agent = agent
        self._lock = threading.Lock()
        self._to_remove: dict[str, str] = {}  # container -> task
        self._removed: set[str] = set()
        self._to_signal: dict[str, str | None] = {}
        self._working = 0

    def is_leaving(self, container: str) -> bool:
        """Whether it is to be removed, or was: an older listing may still name it."""
        with self._lock:
            return container in self._to_remove or container in self._removed

    def is_pending(self, task_id: str) -> bool:
        """Whether something of this task is still to be removed."""
        with self._lock:
            return task_id in self._to_remove.values()

    def idle(self) -> bool:
        """Whether nothing is left to signal or remove."""
        with self._lock:
            return not self._to_remove and not self._working

    def signal(self, container: str, name: str | None) -> None:
        """Send a signal; None is the one by which the image wants to be asked to end. While one waits
        for Docker, the last that was asked for is the one that goes out."""
        with self._lock:
            waiting = container in self._to_signal
            self._to_signal[container] = name
        if not waiting:
            self._begin(lambda: self._signal(container))

    def remove(self, container: str, task_id: str) -> None:
        """Remove the container, running or not, and the task's network."""
        with self._lock:
            self._to_remove[container] = task_id
        self._begin(self.remove_pending)

    def clear_start(self, container: str, task_id: str) -> None:
        """Remove what a failed start left, now if Docker answers and else later. `container` "" where
        none was made."""
        try:
            if container:
                self.remove_now(container, task_id)
            else:
                self.remove_networks(task_id)
        except (NoAnswer, DockerRefused) as error:
            log.warning("%s: what its start left is removed later: %s", task_id, error)
            if container:
                with self._lock:
                    self._to_remove[container] = task_id

    def remove_pending(self) -> None:
        """Try all removals that are left; those that get no answer wait for the next time."""
        with self._lock:
            waiting = list(self._to_remove.items())
        for container, task_id in waiting:
            try:
                self.remove_now(container, task_id)
            except NoAnswer as error:
                log.debug("%s: the removal waits: %s", task_id, error)
            except DockerRefused as error:
                log.warning("%s: the container cannot be removed yet: %s", task_id, error)

    def remove_now(self, container: str, task_id: str) -> None:
        """Remove it and wait for that. Raises NoAnswer or DockerRefused."""
        try:
            with told():
                self._docker.api.remove_container(container, v=True, force=True)
        except DockerRefused as error:
            if error.words.trouble is not Trouble.GONE:
                raise
        with self._lock:
            self._removed.add(container)
        self.remove_networks(task_id)
        with self._lock:
            self._to_remove.pop(container, None)

    def remove_networks(self, task_id: str) -> None:
        """Remove every network that this agent made for the task. Raises NoAnswer or DockerRefused."""
        with told():
            found = self._docker.api.networks(
                filters={"label": [f"{AGENT}={self._agent}", f"{TASK}={task_id}"]}
            )
        self._drop_networks([str(network["Id"]) for network in found])

    def remove_stray_networks(self, known: Callable[[], set[str]]) -> None:
        """Remove this agent's networks of all tasks but the known ones. Those are asked for after Docker
        listed the networks: a start that begins meanwhile loses nothing. Raises as above."""
        with told():
            found = self._docker.api.networks(filters={"label": f"{AGENT}={self._agent}"})
        with self._lock:
            kept = set(self._to_remove.values())
        kept |= known()
        strays = [n for n in found if (n.get("Labels") or {}).get(TASK) not in kept]
        for network in strays:
            log.warning("%s: its network was left behind; removed", network.get("Name"))
        self._drop_networks([str(network["Id"]) for network in strays])

    def _drop_networks(self, networks: list[str]) -> None:
        for network in networks:
            try:
                with told():
                    self._docker.api.remove_network(network)
            except DockerRefused as error:
                if error.words.trouble is not Trouble.GONE:
                    raise

    def close(self, wait_s: float) -> None:
        """Wait a while for what is under way."""
        give_up_at = time.monotonic() + wait_s
        while not self.idle() and time.monotonic() < give_up_at:
            time.sleep(0.05)

    def _begin(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._working += 1
        threading.Thread(target=self._work, args=(work,), name="docker-end", daemon=True).start()

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("ending a container failed")
        finally:
            with self._lock:
                self._working -= 1
            self._docker.close()

    def _signal(self, container: str) -> None:
        """Repeated until Docker answered: a signal that is lost would cost the whole grace period."""
        give_up_at = time.monotonic() + SIGNAL_FOR_S
        sent: str | None = ""
        while True:
            with self._lock:
                name = self._to_signal[container]
                if name == sent or time.monotonic() > give_up_at:
                    del self._to_signal[container]
                    return
            try:
                self._send(container, name)
                sent = name
            except NoAnswer:
                time.sleep(AGAIN_S)
            except DockerRefused as error:
                log.debug("%s: not signalled: %s", container[:12], error)  # it has ended already
                sent = name

    def _send(self, container: str, name: str | None) -> None:
        with told():
            if name is None:
                found = self._docker.api.inspect_container(container)
                name = str(found["Config"].get("StopSignal") or "SIGTERM")
            self._docker.api.kill(container, signal=name)
