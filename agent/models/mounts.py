"""What of the host a task's container may see (AGENT-05, AGENT-15).

Owns the mount rules for model and volumes: each host path passes the path checks, the model is
read-only, and neither Docker's socket nor the agent's own directory is ever mounted. Looks at files,
changes none.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

import msgspec

from agent.contract.codes import Code, reason
from agent.models.locate import gguf_file
from agent.models.paths import PathRefused, PathRules, check_model_path, check_path, is_within, normalise

_KEPT = ("/proc", "/sys", "/dev", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/usr")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<all>\d{5})\.gguf\Z")
MOST_LINKS = 20000


class HostMount(msgspec.Struct, frozen=True):
    """One bind mount: real host path, place inside, and whether it may be written."""

    source: str
    target: str
    read_only: bool = True


class ModelMount(msgspec.Struct, frozen=True):
    """The mounts of a model, and the path by which the engine is to open it."""

    mounts: list[HostMount]
    inside: str


def mount_model(given: str, rules: PathRules, *, gguf: bool, never: tuple[str, ...] = ()) -> ModelMount:
    """Mounts for a model path, at the same place inside as it was given.

    `gguf`: the engine opens one file; then a folder means the model in it. `never` are host paths
    that no mount may lie in or hold. Raises PathRefused.
    """
    real = check_model_path(given, rules)
    _refuse_kept(real, given, never)
    place = normalise(given) if given.startswith("/") else normalise(f"{rules.relative_root}/{given}")
    assert place is not None  # check_model_path has passed it
    if real.is_file():
        return _mount_file(real, place, given)
    _require_whole(real, given)
    inside = f"{place}/{gguf_file(real, given).name}" if gguf else place
    return ModelMount([HostMount(str(real), place)], inside)


def _mount_file(real: Path, place: str, given: str) -> ModelMount:
    """A single file: its neighbours may be other people's, so only its own shards come along."""
    mounts = [HostMount(str(real), place)]
    shard = _SHARD.match(real.name)
    if shard is not None:
        folder = place.rsplit("/", 1)[0]
        for other in sorted(real.parent.glob(f"*-of-{shard['all']}.gguf")):
            match = _SHARD.match(other.name)
            if match is None or match["stem"] != shard["stem"] or other.name == real.name:
                continue
            if other.is_symlink():
                raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given, link=other.name))
            mounts.append(HostMount(str(other), f"{folder}/{other.name}"))
    return ModelMount(mounts, place)


def _require_whole(folder: Path, given: str) -> None:
    """Links that lead out of the folder lead nowhere inside the container: refused beforehand."""
    for number, entry in enumerate(folder.rglob("*")):
        if number > MOST_LINKS:
            return
        if entry.is_symlink() and not is_within(str(entry.resolve(strict=False)), str(folder)):
            name = str(entry.relative_to(folder))
            raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given, link=name))


def mount_volume(given: str, rules: PathRules, *, never: tuple[str, ...] = ()) -> HostMount:
    """One `HOST:INSIDE[:ro|rw]` volume; written to unless it says ro. Raises PathRefused."""
    parts = given.split(":")
    mode = parts.pop() if len(parts) == 3 else "rw"
    inside = normalise(parts[1]) if len(parts) == 2 else None
    refused = PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given))
    if inside is None or mode not in ("ro", "rw") or inside == "/":
        raise refused
    if any(is_within(inside, kept) for kept in _KEPT):
        raise refused
    real = check_path(parts[0], rules)
    _refuse_kept(real, parts[0], never)
    return HostMount(str(real), inside, read_only=mode == "ro")


def _refuse_kept(real: Path, given: str, never: tuple[str, ...]) -> None:
    kept = [str(Path(path).resolve(strict=False)) for path in never if path]
    refused = PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given))
    if any(is_within(path, str(real)) or is_within(str(real), path) for path in kept):
        raise refused
    try:
        mode = real.stat().st_mode
    except OSError as error:
        raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given)) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise refused  # a socket or a device is a door to the host, not a file
