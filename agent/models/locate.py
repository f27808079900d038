"""Which file of a model an engine is to be given.

Owns the look into a model's folder. Never decides whether the folder may be read at all: that is
`paths.check_model_path`, called before.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.contract.codes import Code, reason
from agent.models.paths import PathRefused

_LATER_SHARD = re.compile(r"-(?!00001-of-)\d{5}-of-\d{5}\.gguf\Z")


def gguf_file(path: Path, given: str) -> Path:
    """The GGUF file at this path: the file itself, or the only model in a folder (its first shard).

    Raises PathRefused model_not_found_on_node, with the path as given, when there is none or more
    than one.
    """
    if path.is_file():
        return path
    found = sorted(p for p in path.glob("*.gguf") if p.is_file() and not _LATER_SHARD.search(p.name))
    models = [p for p in found if not p.name.startswith("mmproj")]
    if len(models) != 1:
        raise PathRefused(reason(Code.MODEL_NOT_FOUND_ON_NODE, path=given, gguf_files=len(models)))
    return models[0]
