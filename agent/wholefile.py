"""Writes a file whole or not at all, for its owner only.

Owns the one way in which the agent's own files come about: beside, to the disk, then in their place. Says
nothing of what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: bytes, *, lasting: bool = True) -> None:
    """Put `content` in the place of `file`, mode 0600: a reader, and the next run after a kill, has the old
    bytes or the new ones. `lasting`: so also after a loss of power, which costs a write to the disk. Raises
    OSError; the old file stands then.
    """
    part = file.with_name(f"{file.name}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as out:
        os.fchmod(fd, 0o600)  # one that was left behind may have been another's to read
        out.write(content)
        out.flush()
        if lasting:
            os.fsync(fd)
    part.replace(file)
    if lasting:
        _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Until then the disk may still know the old name."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
