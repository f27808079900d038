"""Which file of a model an engine is to be given, and whether what lies in its folder may be read.

Owns the look into a model's folder. Never decides whether the folder itself may be read: that is
`paths.check_model_path`, called before.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.contract.codes import Code, reason
from agent.models.paths import PathRefused, PathRules, check_path

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


def check_links(path: Path, given: str, rules: PathRules) -> None:
    """Follow every link in a model's folder, as an engine without walls round it would.

    Raises PathRefused path_not_allowed, with the path as given, when one leads out of the folders
    that the node allows. A link to nothing harms nobody.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if not entry.is_symlink():
                continue
            try:
                check_path(str(entry), rules)
            except PathRefused as error:
                if error.reason.code == Code.PATH_NOT_ALLOWED:
                    raise PathRefused(reason(Code.PATH_NOT_ALLOWED, path=given)) from error
