"""Paths compared as text, segment by segment: the first of the two checks of AGENT-05, for both sides.

Pure: no file is looked at, so that an answer is the same whether a path exists or not.
"""

from __future__ import annotations

import posixpath

MAX_PATH_BYTES = 4096
MAX_SEGMENT_BYTES = 255


def normalise(path: str) -> str | None:
    """The path as text without `.`, `..` and doubled slashes; None when it is no usable absolute
    path. `%2e` is not a dot here: it stays the name that it is."""
    if (
        not path.startswith("/")
        or "\0" in path
        or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES
    ):
        return None
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return None
    text = posixpath.normpath("/" + path.lstrip("/"))
    if any(len(segment.encode()) > MAX_SEGMENT_BYTES for segment in text.split("/")):
        return None
    return text


def is_within(path: str, prefix: str) -> bool:
    """Whether a normalised path is the prefix or lies under it, whole segments only."""
    own, base = _segments(path), _segments(prefix)
    return own[: len(base)] == base


def mounted_places(volumes: list[str], model_path: str) -> list[str]:
    """The host directories that a task's volumes (`HOST:INSIDE[:MODE]`) and its absolute model path name,
    normalised. Names only: whether a node mounts them is decided there."""
    named = [*(volume.split(":")[0] for volume in volumes), model_path]
    return [place for place in map(normalise, named) if place is not None]


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]
