"""The bytes of requested files in Django's storage: one stored file a piece, read back as one.

Owns their names and reading. Never a row: `services.py` says which pieces count.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from django.core.files.storage import default_storage
from django.core.files.uploadedfile import TemporaryUploadedFile

from apps.core.errors import Refusal, Unavailable

log = logging.getLogger("heteroflow.files")

FOLDER = "files"
BLOCK = 256 * 1024  # bytes in memory at once
Stored = tuple[int, int, str]  # a piece: start, end, name in the storage


class Body(Protocol):
    """A request's body, read bit by bit."""

    def read(self, size: int, /) -> bytes: ...


def receive(body: Body, *, sha256: str, most: int) -> TemporaryUploadedFile:
    """The body on disk; the caller closes it, which removes it. Raises Refusal 413 `body_too_large` above
    `most` bytes, 400 `file_chunk_damaged` where it is not what its checksum says, Unavailable."""
    spooled = TemporaryUploadedFile("piece", "application/octet-stream", 0, None)
    digest, size = hashlib.sha256(), 0
    try:
        while block := body.read(BLOCK):
            size += len(block)
            if size > most:
                raise Refusal("body_too_large", 413)
            digest.update(block)
            spooled.write(block)
        if digest.hexdigest() != sha256:
            raise Refusal("file_chunk_damaged")
    except OSError as error:
        spooled.close()
        log.error("a piece of a file is not kept: %s", error.strerror)
        raise Unavailable from error
    except Refusal:
        spooled.close()
        raise
    spooled.size = size
    spooled.seek(0)
    return spooled


def keep(request_id: str, start: int, piece: TemporaryUploadedFile) -> str:
    """Store a piece under a name of its own. Raises Unavailable."""
    try:
        return default_storage.save(f"{FOLDER}/{request_id}/{start:015d}", piece)
    except OSError as error:
        log.error("a piece of file request %s is not stored: %s", request_id, error.strerror)
        raise Unavailable from error


def checksum(pieces: Sequence[Stored]) -> str:
    """The sha256 of what is stored, read once. Raises FileNotFoundError."""
    digest = hashlib.sha256()
    for block in read(pieces, 0, pieces[-1][1] if pieces else 0):
        digest.update(block)
    return digest.hexdigest()


def read(pieces: Sequence[Stored], first: int, last: int) -> Iterator[bytes]:
    """Bytes [first, last) in blocks. Raises FileNotFoundError, and EOFError for a piece that was cut."""
    for start, end, name in pieces:
        at, until = max(first, start), min(last, end)
        if at >= until:
            continue
        with default_storage.open(name, "rb") as file:
            file.seek(at - start)
            while at < until:
                block = _read_block(file, min(BLOCK, until - at))
                at += len(block)
                yield block


async def read_async(pieces: Sequence[Stored], first: int, last: int) -> AsyncIterator[bytes]:
    """The same for an event loop; files are read in threads."""
    blocks = read(pieces, first, last)
    while block := await asyncio.to_thread(next, blocks, b""):
        yield block


def _read_block(file: Any, wanted: int) -> bytes:
    block = bytes(file.read(wanted))
    if not block:
        raise EOFError("a stored piece of a file is shorter than its row says")
    return block


def is_whole(pieces: Sequence[Stored]) -> bool:
    """Whether every piece's file is there."""
    return all(default_storage.exists(name) for _, _, name in pieces)


def drop(names: Sequence[str]) -> None:
    """Delete stored pieces; those that are gone are gone."""
    for name in names:
        default_storage.delete(name)


def drop_folder(request_id: str) -> None:
    """Delete all that is stored of a request."""
    folder = f"{FOLDER}/{request_id}"
    try:
        _, files = default_storage.listdir(folder)
    except FileNotFoundError:  # nothing came
        return
    drop([f"{folder}/{name}" for name in files])
    default_storage.delete(folder)


def folders() -> list[str]:
    """The requests of which something is stored."""
    try:
        return default_storage.listdir(FOLDER)[0]
    except FileNotFoundError:
        return []
