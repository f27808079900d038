"""Which host paths a task may read (AGENT-05).

Owns the two checks: first by text alone, segment by segment, then, only for a path that passed,
again after links are resolved. A path outside is refused before any file-system call, so that the
answer is the same whether it exists or not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.contract.codes import Code, Reason, reason
from agent.contract.paths import is_within as is_within
from agent.contract.paths import normalise as normalise


class PathRefused(Exception):
    """A path that a task may not use; `reason` tells which, as it was given, and the rule."""

    def __init__(self, why: Reason) -> None:
        super().__init__(f"{why.code}: {why.params}")
        self.reason = why


class PathRules(msgspec.Struct, frozen=True):
    """Prefixes from the node's configuration. `relative_root` is where a model named without a
    leading slash is looked for."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...] = ()
    relative_root: str = "/data/models"


def _passes(path: str, allowed: list[str], denied: list[str]) -> bool:
    return any(is_within(path, a) for a in allowed) and not any(is_within(path, d) for d in denied)


def check_path(given: str, rules: PathRules) -> Path:
    """The real path of a model or volume that a task may read.

    Raises PathRefused with path_not_allowed (outside, or a link leads outside) or
    model_not_found_on_node (inside, but not there); both name the path as it was given.
    """
    allowed = [text for text in map(normalise, rules.allowed) if text is not None]
    denied = [text for text in map(normalise, rules.denied) if text is not None]
    refused = PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given))
    text = normalise(given)
    if text is None or not _passes(text, allowed, denied):
        raise refused
    try:
        real = str(Path(text).resolve(strict=False))
        real_allowed = [str(Path(a).resolve(strict=False)) for a in allowed]
        real_denied = [str(Path(d).resolve(strict=False)) for d in denied]
    except (OSError, RuntimeError) as error:  # a loop of links, or no right to look
        raise refused from error
    if not _passes(real, real_allowed, real_denied):
        raise refused
    found = Path(real)
    try:
        there = found.exists()
    except OSError as error:
        raise refused from error
    if not there:
        raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given))
    return found


def check_model_path(given: str, rules: PathRules) -> Path:
    """Like `check_path`; a relative name means {relative_root}/{name} if its config.json is there."""
    if given.startswith("/"):
        return check_path(given, rules)
    if not given or "\0" in given or normalise(f"/{given}") != f"/{given}":
        raise PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given))
    try:
        folder = check_path(f"{rules.relative_root}/{given}", rules)
        check_path(f"{rules.relative_root}/{given}/config.json", rules)
    except PathRefused as error:
        raise PathRefused(reason(error.reason.code, path=given)) from error
    return folder
