"""Appends usage records to this process's own file, before the caller has the last bytes (GW-12).

Whole lines on an O_APPEND descriptor: a killed process leaves at most the last one torn. Never talks to the
database; `apps.usage.flusher` does.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from apps.usage.files import UsageFileName, new_name
from apps.usage.record import UsageEntry

log = logging.getLogger("heteroflow.gateway")
_encoder = msgspec.json.Encoder()
AT_ONCE = 256
"""So many records at most are one `write`."""


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
        self.put(entry)
        return self.flush()

    def put(self, entry: UsageEntry) -> None:
        """Takes a record that the next `flush` writes: whoever ends many calls at once pays for one write."""
        waiting = self._waiting
        waiting.append(_encoder.encode(entry) + b"\n")
        if len(waiting) > self._backlog and not self.flush() and len(waiting) > self._backlog:
            waiting.popleft()
            self.lost += 1
            log.error("usage record lost: the backlog of %d records is full", self._backlog)

    def flush(self) -> bool:
        """Writes what waits; False when the file still can't be written."""
        try:
            while self._waiting:
                self._write(islice(self._waiting, AT_ONCE))
        except OSError as error:
            log.error("usage records wait: %d, since the usage file fails: %s", self.waiting, error.strerror)
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

    def _write(self, lines: Iterable[bytes]) -> None:
        """Writes the first of those that wait; what could not be written goes on waiting. Raises OSError."""
        data = b"".join(lines)
        if self._descriptor < 0 or self._name is None:
            self.open()
        elif self._size and self._size + len(data) > self._max_file_bytes:
            self._begin(msgspec.structs.replace(self._name, sequence=self._name.sequence + 1))
        written = os.write(self._descriptor, data)
        whole = written if written == len(data) else data.rfind(b"\n", 0, written) + 1
        if whole < written:
            # Half a line must not stay: the next one would be glued to it.
            os.ftruncate(self._descriptor, self._size + whole)
        self._size += whole
        for _ in range(data.count(b"\n", 0, whole)):
            self._waiting.popleft()
        if whole < len(data):
            raise OSError(28, "no space for a whole record")
