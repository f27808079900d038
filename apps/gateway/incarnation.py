"""Which run of which process a gateway's word is of, so that another one beside it can prove that it is dead.

Owns the form of the name and the proof. What is only silent, stopped or cut off is never called dead here.
"""

import os
import re
import socket
import uuid
from pathlib import Path

from apps.usage.files import process_start

_NAME = re.compile(r"(?P<place>.+):(?P<pid>\d+)-(?P<start>\d+):[0-9a-f]{8}")


def new_name() -> str:
    """For one gateway of the calling process: host, boot and the space of its pids; pid and start; and a mark
    of its own, so that a successor is another one."""
    pid = os.getpid()
    return f"{_place()}:{pid}-{process_start(pid) or 0}:{uuid.uuid4().hex[:8]}"


def is_dead(name: str) -> bool:
    """Whether that process ran where this one does, and is no more: the kernel has closed its connections.
    False wherever that can't be told from here."""
    parts = _NAME.fullmatch(name)
    if parts is None or parts["place"] != _place():
        return False
    pid, start = int(parts["pid"]), int(parts["start"])
    began = process_start(pid)
    if began is not None:
        return began != start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # somebody else's, hidden from us
    return True  # it has ended, and nobody has asked how


def _place() -> str:
    """Pids mean something only within one boot of one machine, and there within one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:13]
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return f"{socket.gethostname()[:100]}:?{uuid.uuid4().hex}"  # like no other
    return f"{socket.gethostname()[:100]}:{boot}:{space}"
