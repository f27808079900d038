"""Looks at this agent's containers again and again, so that the supervisor never waits for Docker.

Owns the last complete answer and when it came. A failed or slow question leaves it as it was: "no
answer" is not "gone". A container counts as gone only when Docker listed everything without it and
then denied knowing it. Changes nothing in Docker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.runtime.base import Exit
from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_images import Images
from agent.runtime.docker_labels import AGENT, Found, read_listed
from agent.runtime.docker_words import Trouble

log = logging.getLogger("agent.runtime")
IMAGES_EACH_S = 30.0
CLOSE_S = 1.0
ENDED = ("exited", "dead")
RUNNING = ("running", "paused", "restarting")


class Watch:
    """One thread. All methods may be called from any thread and answer at once."""

    def __init__(
        self,
        docker: Docker,
        images: Images,
        *,
        agent: str,
        poll_s: float,
        silence_s: float,
        upkeep: Callable[[], None],
    ) -> None:
        self._docker = docker
        self._images = images
        self._agent = agent
        self._poll_s = poll_s
        self._silence_s = silence_s
        self._upkeep = upkeep
        self._lock = threading.Lock()
        self._found: dict[str, Found] = {}
        self._tracked: dict[str, object] = {}  # with a sign of its own for each life of a container
        self._kept: set[str] = set()
        self._exits: dict[str, Exit] = {}
        self._tags: dict[str, str] = {}
        self._tags_at = float("-inf")
        self._answered_at = float("-inf")
        self._trouble = ""
        self._look = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="docker-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more; waits a little for the question under way."""
        self._end.set()
        self._look.set()
        self._thread.join(CLOSE_S)

    def look(self) -> None:
        """Look again now."""
        self._look.set()

    def answers(self) -> bool:
        """Whether Docker answered the last question, not long ago, and all that it named is known."""
        with self._lock:
            return not self._trouble and time.monotonic() - self._answered_at <= self._silence_s

    def found(self) -> list[Found]:
        """Containers of this agent in the last complete answer."""
        with self._lock:
            return list(self._found.values())

    def tags(self) -> dict[str, str]:
        """Images of the last complete answer, name:tag to id."""
        with self._lock:
            return dict(self._tags)

    def track(self, container: str) -> None:
        """Tell of this container's end from now on."""
        with self._lock:
            self._tracked.setdefault(container, object())

    def state_of(self, container: str) -> str | None:
        """Its state in the last complete answer; None where that did not name it."""
        with self._lock:
            found = self._found.get(container)
            return found.state if found else None

    def keep(self, container: str) -> None:
        """It has ended and stays: tell also when it is removed."""
        with self._lock:
            self._kept.add(container)

    def drop(self, container: str) -> None:
        """Tell no more of it."""
        with self._lock:
            self._tracked.pop(container, None)
            self._kept.discard(container)
            self._exits.pop(container, None)

    def exit_of(self, container: str) -> Exit | None:
        """How it ended; None while it lives, and while that is not known."""
        with self._lock:
            return self._exits.get(container)

    def _run(self) -> None:
        while not self._end.is_set():
            self._look.clear()
            try:
                self.observe()
                self._upkeep()
                self._note_answer()
            except (NoAnswer, DockerRefused) as error:
                self._note(str(error) or "no answer")
            except Exception:
                log.exception("looking at Docker's containers failed")
                self._note("a fault of the agent's own")
            self._look.wait(self._poll_s)

    def observe(self) -> None:
        """Ask once. Raises NoAnswer or DockerRefused, and then nothing has changed."""
        with self._lock:
            tracked = dict(self._tracked)
        with told():
            rows = self._docker.api.containers(all=True, filters={"label": f"{AGENT}={self._agent}"})
        listed = [found for row in rows if (found := read_listed(row, self._agent)) is not None]
        now = {found.container: found for found in listed}
        ends: dict[str, Exit] = {}
        for container in tracked:
            if self._is_open(container) and (container not in now or now[container].state in ENDED):
                ended = self._inspect(container)
                if ended is not None:
                    ends[container] = ended
        if time.monotonic() - self._tags_at > IMAGES_EACH_S:
            tags = self._images.tags()
            self._tags_at = time.monotonic()
        else:
            tags = None
        with self._lock:
            self._found = now
            # Not of one that was started again while it was asked for.
            self._exits |= {c: e for c, e in ends.items() if self._tracked.get(c) is tracked[c]}
            self._tags = self._tags if tags is None else tags

    def _is_open(self, container: str) -> bool:
        """Whether its end is not known yet; one that is kept may be removed after its end."""
        with self._lock:
            known = self._exits.get(container)
            if container in self._kept and known is not None:
                found = self._found.get(container)
                return not known.vanished and found is None
            return known is None

    def _inspect(self, container: str) -> Exit | None:
        try:
            with told():
                state = self._docker.api.inspect_container(container)["State"]
        except DockerRefused as error:
            if error.words.trouble is Trouble.GONE:
                return Exit(exit_code=None, vanished=True)
            raise
        if state.get("Status") not in ENDED:
            return None
        return Exit(exit_code=state.get("ExitCode"), out_of_memory=bool(state.get("OOMKilled")))

    def _note_answer(self) -> None:
        with self._lock:
            self._answered_at = time.monotonic()
            recovered, self._trouble = self._trouble, ""
        if recovered:
            log.info("Docker answers again")

    def _note(self, trouble: str) -> None:
        with self._lock:
            first, self._trouble = not self._trouble, trouble
        if first:
            log.warning("Docker does not answer (%s); what runs is taken to run on", trouble)
