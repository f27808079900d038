"""Which images of this node were fetched with somebody's credentials (AGENT-19).

Owns the agent's durable record of them: Docker itself gives every image to everybody. A fetch is written
down before it begins, so that no end of the agent leaves an image unmarked. Holds ids and names, never
credentials. Never asks Docker anything.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import msgspec

from agent.config import ConfigError
from agent.wholefile import write_whole


class Fetch(msgspec.Struct):
    """One fetch with credentials: what it is to bring, and the ids that were here before it."""

    image: str
    before: list[str]


class _Record(msgspec.Struct):
    images: list[str] = []
    fetches: dict[str, Fetch] = {}


class PrivateImages:
    """May be called from any thread."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError for a file that cannot be read: without it nobody knows what is private."""
        self._file = file
        self._lock = threading.Lock()
        try:
            self._record = msgspec.json.decode(file.read_bytes(), type=_Record)
        except FileNotFoundError:
            self._record = _Record()
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{file}: the record of images fetched with credentials cannot be read. Restore the file, or "
                "remove those images from this node and then the file."
            ) from error
        self._left = set(self._record.fetches)  # of an earlier run

    def begin(self, image: str, here: list[str]) -> str:
        """Write a fetch down before it begins; its token. Raises OSError, and then nothing may begin."""
        token = secrets.token_hex(8)
        with self._lock:
            self._record.fetches[token] = Fetch(image, here)
            try:
                self._save()
            except OSError:  # what it does not bring would be marked for ever
                del self._record.fetches[token]
                raise
        return token

    def fetches(self) -> dict[str, Fetch]:
        """Fetches whose image may be here already and not be marked yet."""
        with self._lock:
            return dict(self._record.fetches)

    def bring(self, token: str, found: str, *, over: bool) -> None:
        """Docker has `found` under a fetch's name now ("" for nothing). `over`: it brings no more; one of
        an earlier run never does. Raises OSError."""
        with self._lock:
            fetch = self._record.fetches.get(token)
            if fetch is None:
                return
            new = bool(found) and found not in fetch.before and found not in self._record.images
            if new:
                self._record.images.append(found)
            ended = over or token in self._left
            if ended:
                del self._record.fetches[token]
            if new or ended:
                self._save()

    def holds(self, image_id: str) -> bool:
        """Whether this image was fetched with credentials."""
        with self._lock:
            return image_id in self._record.images

    def _save(self) -> None:
        write_whole(self._file, msgspec.json.encode(self._record))
