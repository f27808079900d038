"""Which files a process writes in the folder of metrics' values that a host's processes share (OPS-04).

Each needs a name of its own there, and its pid won't do: containers that share the folder have the same ones,
and each restart would leave more files. So each process takes the lowest free number and holds a lock on it
until it ends, however it ends; who takes the number next goes on with what was counted. Who finds every
number free is the first of the whole set and empties the folder. Where the disk is full, values go on in
memory. Reads no value: apps/ops/metrics.py does.
"""

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import mark_process_dead

log = logging.getLogger("heteroflow.metrics")
HEAD_BYTES = 4096  # of a new file; it grows by itself
VALUE_BYTES = 64  # of one value beside its key, and more than that
SLOTS_MAX = 1000  # of one host: far more than processes, a bound for the search alone


def share(folder: Path) -> None:
    """Have this process's metrics stand in the folder, which must be PROMETHEUS_MULTIPROC_DIR. To be called
    before the first metric is made. Raises OSError where the folder can't be made or written."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    slot = _Slot(folder)
    values.MmapedDict = _Allocated  # type: ignore[misc]  # what MultiProcessValue opens its files by
    values.ValueClass = values.MultiProcessValue(slot.number)


def tidy(folder: Path) -> None:
    """Drop what ended processes said of the present, as calls in flight; what they counted stays."""
    with _alone(folder):
        for number in _slots(folder):
            if not _is_held(_lock_of(folder, number)):
                mark_process_dead(number, str(folder))


class _Slot:
    """This process's number; taken anew by a child that was forked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._owner, self._number = folder, 0, 0

    def number(self) -> int:
        if self._owner != os.getpid():
            self._number, self._owner = _take(self._folder), os.getpid()
        return self._number


class _Allocated(MmapedDict):
    """Has the disk give the room for a value before it is written: a process that writes into a map for which
    a full disk has no block left is killed (SIGBUS). Without it, values go on in memory, where no scrape sees
    them; the file keeps what was counted until then."""

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        with Path(filename).open("ab") as file:
            if not _has_room(file.fileno(), 0, HEAD_BYTES):
                filename = f"/proc/self/fd/{os.memfd_create('metrics')}"
        super().__init__(filename, read_mode)

    def _init_value(self, key: str) -> None:
        if not _has_room(self._f.fileno(), self._used, len(key.encode()) + VALUE_BYTES):
            memory = os.fdopen(os.memfd_create("metrics"), "r+b")
            # Not what lies behind: a tmpfs fills holes when they are read.
            memory.write(self._m[: self._used])
            memory.truncate(self._capacity)
            self._m.close()
            self._f.close()
            self._f = memory
            self._m = mmap.mmap(memory.fileno(), self._capacity)
        super()._init_value(key)


def _has_room(file: int, start: int, size: int) -> bool:
    try:
        os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.error("the disk of the metrics' folder is full: new values are counted, and not shown")
        return False
    return True


def _take(folder: Path) -> int:
    with _alone(folder):
        if not any(_is_held(_lock_of(folder, number)) for number in _slots(folder)):
            for old in (*folder.glob("*.db"), *folder.glob("slot_*.lock")):
                old.unlink()
        for number in range(SLOTS_MAX):
            if _hold(_lock_of(folder, number)):
                mark_process_dead(number, str(folder))
                return number
    raise OSError(f"{SLOTS_MAX} processes share the folder of metrics already")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time looks at the numbers."""
    with (folder / "slots.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _lock_of(folder: Path, number: int) -> Path:
    return folder / f"slot_{number}.lock"


def _slots(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("slot_")) for path in folder.glob("slot_*.lock")]


def _hold(path: Path) -> bool:
    """Lock it until this process ends; False where another has it, or where another user made it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except PermissionError:  # another user's who shows nothing: not ours to judge
        return True
    return False
