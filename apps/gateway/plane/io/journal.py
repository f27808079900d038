"""Appends usage records to this process's own file, before the caller has the last bytes (GW-12).

One `write` a record on an O_APPEND descriptor: a killed process leaves whole lines, at most the
last one torn. Never talks to the database; `apps.usage.flusher` does.
"""

import logging
import os
from collections import deque
from pathlib import Path

import msgspec

from apps.usage.files import UsageFileName, new_name
from apps.usage.record import UsageEntry

log = logging.getLogger("heteroflow.gateway")
_encoder = msgspec.json.Encoder()


class Journal:
    """This process's usage files in `folder`.

    A record that could not be written (disk full) waits in memory, at most `backlog` of them, and
    goes out before the next one; `lost` counts those that found no room.
    """

    def __init__(self, folder: Path, *, max_file_bytes: int, backlog: int) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._backlog = backlog
        self._waiting: deque[bytes] = deque()
        self._name: UsageFileName | None = None
        self._descriptor = -1
        self._size = 0
        self.lost = 0

    @property
    def waiting(self) -> int:
        """Records that are not in the file yet."""
        return len(self._waiting)

    @property
    def path(self) -> Path | None:
        """The file that is written now; None before `open`."""
        return None if self._name is None else self._folder / str(self._name)

    def open(self) -> None:
        """Makes the folder and the first file. Raises OSError when that fails."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._begin(new_name())

    def append(self, entry: UsageEntry) -> bool:
        """Writes one record; False when it had to wait in memory (already logged)."""
        line = _encoder.encode(entry) + b"\n"
        first = not self._waiting
        if first and self._try(line):
            return True
        self._waiting.append(line)
        if len(self._waiting) > self._backlog:
            self._waiting.popleft()
            self.lost += 1
            log.error("usage record lost: the backlog of %d records is full", self._backlog)
        return not first and self.retry()

    def retry(self) -> bool:
        """Writes what waits; False when the file still can't be written."""
        while self._waiting:
            if not self._try(self._waiting[0]):
                return False
            self._waiting.popleft()
        return True

    def _try(self, line: bytes) -> bool:
        try:
            self._write(line)
        except OSError as error:
            waiting = self.waiting or 1
            log.error("usage records wait: %d, since the usage file fails: %s", waiting, error.strerror)
            return False
        return True

    def close(self) -> None:
        """Closes the file; its rest is for the flusher."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self, name: UsageFileName) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self._folder / str(name), flags, 0o600)
        self.close()
        self._name, self._descriptor, self._size = name, descriptor, 0

    def _write(self, line: bytes) -> None:
        if self._descriptor < 0 or self._name is None:
            self.open()
        elif self._size and self._size + len(line) > self._max_file_bytes:
            self._begin(msgspec.structs.replace(self._name, sequence=self._name.sequence + 1))
        written = os.write(self._descriptor, line)
        if written < len(line):
            # Half a line must not stay: the next one would be glued to it.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(28, "no space for a whole record")
        self._size += written
