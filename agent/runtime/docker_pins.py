"""Holds a task's host paths still while Docker binds them (AGENT-05, AGENT-15).

A path that passed its checks can be another one a moment later: a container with a writable volume may
put a link there, and Docker follows links when it binds. So the path is opened segment by segment, no
link followed; what was opened is bound to a place in the agent's own directory, which no container
sees; and Docker is given that place. (Docker cannot be given the open file itself: the kernel refuses to
bind /proc/PID/fd/N from within a container's mount namespace.)

Owns those places, and takes them away when the start is over: the container has its own mount by then.
Never decides whether a path is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from agent.contract.codes import Code, reason
from agent.models.mounts import HostMount
from agent.models.paths import PathRefused

log = logging.getLogger("agent.runtime")
PEER_WAIT_S = 2.0
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000  # linux/mount.h
_DETACH, _NO_FOLLOW = 0x2, 0x8
_libc = ctypes.CDLL(None, use_errno=True)


class Pins:
    """The places of one start, in a folder that is the agent's alone. Not for two threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[Path, str] = {}

    def hold(self, mount: HostMount, given: str, *, place: Path | None = None) -> HostMount:
        """The same mount from a place that nobody else can change. `mount.source` is the real path that
        was checked, `given` how the task named it; `place` = one that a container was made with before.

        Raises PathRefused when a link stands in the path now or it is gone, OSError when the system
        refuses the mount.
        """
        opened = open_without_links(mount.source, given)
        try:
            is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
            if place is None:
                place = Path(tempfile.mkdtemp(dir=self._folder) if is_folder else _empty_file(self._folder))
            elif is_folder:
                place.mkdir(mode=0o700)
            else:
                place.touch(mode=0o600, exist_ok=False)
            self._held[place] = mount.target
            _mount(f"/proc/self/fd/{opened}", place, _BIND | _RECURSIVE)
            _mount("none", place, _PRIVATE | _RECURSIVE)
        finally:
            os.close(opened)
        return HostMount(str(place), mount.target, mount.read_only)

    def release(self) -> None:
        """Take the places away. What cannot go now goes when the agent starts anew."""
        for place in self._held:
            _take_away(place)
        self._held.clear()

    def named(self, text: str) -> str:
        """Docker's words with the paths inside instead of these places."""
        for place, target in self._held.items():
            text = text.replace(str(place), target)
        return text


def open_without_links(path: str, given: str) -> int:
    """An O_PATH descriptor of a real absolute path: a folder or a file, no link on the way to it.

    Raises PathRefused with the path as given: path_not_allowed for a link, a socket or a device,
    model_not_found_on_node where nothing is.
    """
    opened = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for segment in [part for part in path.split("/") if part]:
            inner = os.open(segment, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
            os.close(opened)
            opened = inner
            mode = os.fstat(opened).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given))
    except PathRefused:
        os.close(opened)
        raise
    except OSError as error:
        os.close(opened)
        raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given)) from error
    return opened


def can_pin(folder: Path, docker_host: str) -> bool:
    """Whether this process may mount, and Docker sees what it mounts. Asks the kernel, not Docker."""
    try:
        place = Path(tempfile.mkdtemp(dir=folder))
        try:
            _mount(str(place), place, _BIND)
        except OSError:
            place.rmdir()
            raise
        _take_away(place)
        theirs = Path(f"/proc/{_listener(docker_host)}/ns/mnt")
        return theirs.readlink() == Path("/proc/self/ns/mnt").readlink()
    except OSError as error:
        log.debug("paths cannot be held still: %s", error)
        return False


def clear(folder: Path) -> None:
    """At the agent's start: take away what a killed run left. Raises OSError for a folder that is none."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for place in folder.iterdir():
        _take_away(place)


def _listener(docker_host: str) -> int:
    """The process behind Docker's socket: dockerd, or systemd where that listens for it. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(PEER_WAIT_S)
        asker.connect(docker_host.removeprefix("unix://"))
        answer = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", answer)
    return int(pid)


def _empty_file(folder: Path) -> str:
    opened, name = tempfile.mkstemp(dir=folder)
    os.close(opened)
    return name


def _mount(source: str, place: Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def _take_away(place: Path) -> None:
    """Never what lies under the mount: an empty folder or file of ours is all that is removed. Private
    first, or the submounts of the source would go with those of the place."""
    try:
        _mount("none", place, _PRIVATE | _RECURSIVE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: no mount is on it
            log.warning("a held path is not released yet: %s", error.strerror)
            return
    else:
        if _libc.umount2(os.fsencode(place), _DETACH | _NO_FOLLOW) != 0:
            log.warning("a held path is not released yet: %s", os.strerror(ctypes.get_errno()))
            return
    try:
        if place.is_dir():
            place.rmdir()
        else:
            place.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a held path's place is not removed yet: %s", error.strerror)
