"""Copies a container's output into the attempt's own log file, exactly once and in order (AGENT-10).

Owns one thread a container and the file's end. The file is the agent's: Docker's own logs are bounded
and thrown away, and the server's offsets are places in this file. Never masks, and never bounds the
file: whoever carries it does (`agent/link`).
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_places import Place, Repeats, Skipping, load_place, save_place, split_stamp

log = logging.getLogger("agent.runtime")
AGAIN_S = 0.5
SAVE_EACH_S = 0.25
MISSING = (
    b"[heteroflow: lines may be missing here, Docker threw them away before they were copied; how many is "
    b"not known; see log_file_mb and log_files of the agent]\n"
)


class LogCopy:
    """Copies from its making on until the container has ended and all is copied, or `close`."""

    def __init__(
        self, docker: Docker, container: str, *, file: Path, place_file: Path, ended: Callable[[], bool]
    ) -> None:
        self._docker = docker
        self._container = container
        self._file = file
        self._place_file = place_file
        self._ended = ended
        self._close = threading.Event()
        self.done = threading.Event()
        self._place = load_place(place_file)
        threading.Thread(target=self._run, name=f"log {file.stem}", daemon=True).start()

    def close(self) -> None:
        """Copy no more."""
        self._close.set()

    def _run(self) -> None:
        try:
            while not self._close.is_set():
                # asked before: once it has ended, a whole reading from then on is the rest
                last = self._ended()
                try:
                    whole = self._copy(follow=not last)
                except DockerRefused as error:
                    log.warning("%s: Docker gives no log any more: %s", self._file.name, error)
                    return
                except NoAnswer as error:
                    log.debug("%s: the log is not readable now: %s", self._file.name, error)
                except (OSError, ValueError) as error:
                    log.error("%s: copying failed and begins again: %s", self._file.name, error)
                else:
                    if last and whole:
                        return
                    if not whole or self._ended():
                        continue
                self._close.wait(AGAIN_S)
        finally:
            self.done.set()
            self._docker.close()

    def _copy(self, *, follow: bool) -> bool:
        """Append what is new. False where Docker gave lines again: then the rest is to be had by beginning
        anew. Raises NoAnswer, DockerRefused, OSError (our file) or ValueError."""
        with io.FileIO(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as copy:
            if os.fstat(copy.fileno()).st_size < self._place.offset:
                self._place = Place()  # somebody took the file away: all of it once more
            # What was written after the place was stored is written again, the same bytes.
            copy.truncate(self._place.offset)
            copy.seek(self._place.offset)
            skipping, repeats, saved_at = Skipping(self._place), Repeats(), 0.0
            begun = self._place.offset
            try:
                for frame in self._frames(follow):
                    stamp, content = split_stamp(frame)
                    if self._close.is_set():
                        return True
                    repeated = repeats.is_one(stamp, frame)
                    if not skipping.fresh(stamp):
                        continue
                    if repeated and self._place.offset > begun:  # the first one behind the place is new
                        log.info("%s: Docker gives lines again; copying begins anew", self._file.name)
                        return False
                    if skipping.missing:
                        skipping.missing = False
                        _write(copy, MISSING)
                        self._place.offset += len(MISSING)
                    _write(copy, content)
                    self._place.advance(stamp, len(content))
                    if time.monotonic() - saved_at > SAVE_EACH_S:
                        save_place(self._place_file, self._place)
                        saved_at = time.monotonic()
            finally:
                save_place(self._place_file, self._place)
        return True

    def _frames(self, follow: bool) -> Iterator[bytes]:
        """Each line (or part of a very long one) with its time, as Docker stored it."""
        since = {"since": self._place.since_s} if self._place.since_s else {}
        with told():
            stream = self._docker.api.logs(
                self._container,
                stdout=True,
                stderr=True,
                timestamps=True,
                stream=True,
                follow=follow,
                **since,
            )
        frames = iter(stream)
        while True:
            with told():
                try:
                    frame = next(frames)
                except StopIteration:
                    return
            yield frame


def _write(copy: io.FileIO, content: bytes) -> None:
    """Raises OSError, also where the disk took a part only."""
    if copy.write(content) != len(content):
        raise OSError("the disk took a part of a line only")
