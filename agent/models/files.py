"""Opens what somebody asked for of a task's own mounted host directories, and nothing else (AGENT-12).

Owns the way from a path to an open file: by text first, outside = refused unseen; then with its links
resolved, inside what this node mounts for the task; then down from the root, segment by segment, through
no link at all, so that a link put there meanwhile leads nowhere. Reads, never writes.
"""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from agent.contract.codes import Code, reason
from agent.contract.messages import FileEntry, FileOrder
from agent.contract.paths import is_within, mounted_places, normalise
from agent.models.mounts import HostMount, mount_model, mount_volume
from agent.models.paths import PathRefused, PathRules, check_path

MOST_ENTRIES = 1000  # in one answer
MOST_LOOKED_AT = 20000  # of a folder
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a file from `offset` on. `size` is the file's as it was first seen: what it grows by
    meanwhile is left out. `version` says which file it is."""

    offset: int
    size: int
    version: str
    content: bytes


def read_piece(order: FileOrder, rules: PathRules, never: tuple[str, ...]) -> Piece:
    """The piece that an order goes on with. Raises PathRefused: outside, not there, not a file, not to be
    read, or not the file any more that the earlier pieces came from."""
    fd = open_target(order, rules, never)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PathRefused(reason(Code.FILE_NOT_REGULAR, path=order.path))
        size = found.st_size
        if order.version:
            size = _size_of(order.version)
            if order.version != _version(found, size) or found.st_size < size:
                raise PathRefused(reason(Code.FILE_CHANGED, path=order.path))
        content = _read(fd, order.offset, min(order.chunk_bytes, max(0, size - order.offset)))
        if order.offset + len(content) < min(size, order.offset + order.chunk_bytes):
            raise PathRefused(reason(Code.FILE_CHANGED, path=order.path))
        return Piece(order.offset, size, _version(found, size), content)
    except OSError as error:
        raise PathRefused(reason(Code.FILE_UNREADABLE, path=order.path)) from error
    finally:
        os.close(fd)


def list_entries(order: FileOrder, rules: PathRules, never: tuple[str, ...]) -> tuple[list[FileEntry], bool]:
    """What lies in a folder, by name, or the one file that it is; True where more lies there. Raises
    PathRefused."""
    fd = open_target(order, rules, never)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return [_entry(order.path.rstrip("/").rsplit("/", 1)[-1], found)], False
        entries, more = [], False
        with os.scandir(fd) as names:
            for number, name in enumerate(names):
                if number >= MOST_LOOKED_AT:
                    more = True
                    break
                try:
                    entries.append(_entry(name.name, name.stat(follow_symlinks=False)))
                except FileNotFoundError:  # went away while we looked
                    continue
        entries.sort(key=lambda entry: entry.name)
        return entries[:MOST_ENTRIES], more or len(entries) > MOST_ENTRIES
    except OSError as error:
        raise PathRefused(reason(Code.FILE_UNREADABLE, path=order.path)) from error
    finally:
        os.close(fd)


def open_target(order: FileOrder, rules: PathRules, never: tuple[str, ...]) -> int:
    """A descriptor of the file or folder that an order names, open for reading; the caller closes it.
    `never` are host paths that no mount may lie in or hold. Raises PathRefused."""
    refused = PathRefused(reason(Code.PATH_NOT_ALLOWED, path=order.path))
    text = normalise(order.path)
    model = order.model_path
    if model and not model.startswith("/"):
        model = f"{rules.relative_root}/{model}"
    if text is None or not any(is_within(text, place) for place in mounted_places(order.volumes, model)):
        raise refused
    mounts = _mounts(order, rules, never)
    try:
        real = str(check_path(order.path, rules))
    except PathRefused as error:
        if error.reason.code == Code.MODEL_NOT_FOUND_ON_NODE:
            raise PathRefused(reason(Code.FILE_NOT_FOUND, path=order.path)) from error
        raise
    if not any(is_within(real, mount.source) for mount in mounts):
        raise refused
    try:
        return _descend(real, order.path)
    except FileNotFoundError as error:
        raise PathRefused(reason(Code.FILE_NOT_FOUND, path=order.path)) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise refused from error
        raise PathRefused(reason(Code.FILE_UNREADABLE, path=order.path)) from error


def _mounts(order: FileOrder, rules: PathRules, never: tuple[str, ...]) -> list[HostMount]:
    """What this node would mount for the task now; what it would refuse to mount is not there."""
    found: list[HostMount] = []
    for volume in order.volumes:
        try:
            found.append(mount_volume(volume, rules, never=never))
        except PathRefused:
            continue
    if order.model_path:
        try:
            found += mount_model(order.model_path, rules, gguf=False, never=never).mounts
        except PathRefused:
            return found
    return found


def _descend(real: str, given: str) -> int:
    """Open an absolute path without a link in it, from the root on. Raises OSError, ELOOP or ENOTDIR where
    a segment is a link, and PathRefused for what is neither a file nor a folder."""
    *folders, last = [segment for segment in real.split("/") if segment]
    at = os.open("/", _STEP)
    try:
        for name in folders:
            below = os.open(name, _STEP, dir_fd=at)
            os.close(at)
            at = below
        below = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    try:
        mode = os.fstat(below).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            # not opened: a device or a pipe may act on being opened
            raise PathRefused(reason(Code.FILE_NOT_REGULAR, path=given))
        return os.open(f"/proc/self/fd/{below}", os.O_RDONLY | os.O_CLOEXEC)  # the very same file
    finally:
        os.close(below)


def _read(fd: int, offset: int, wanted: int) -> bytes:
    parts, at = [], offset
    while at < offset + wanted:
        part = os.pread(fd, offset + wanted - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _version(found: os.stat_result, size: int) -> str:
    return f"{found.st_dev:x}.{found.st_ino:x}.{size:x}"


def _size_of(version: str) -> int:
    """The size in a version; -1, which no file has, for what is none."""
    try:
        return int(version.rsplit(".", 1)[-1], 16)
    except ValueError:
        return -1


def _entry(name: str, found: os.stat_result) -> FileEntry:
    mode = found.st_mode
    kind = "other"
    for word, test in (("file", stat.S_ISREG), ("folder", stat.S_ISDIR), ("link", stat.S_ISLNK)):
        if test(mode):
            kind = word
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return FileEntry(shown, kind, found.st_size if kind == "file" else None, found.st_mtime)
