"""The project's files as the architecture tests see them."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("apps", "agent", "heteroflow")
NOT_OURS_TO_EDIT = ("static/vendor/", "tests/frozen/")


@cache
def tracked() -> list[Path]:
    """All files that git tracks or would track, apart from vendored and frozen ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name and not name.startswith(NOT_OURS_TO_EDIT))
    return sorted(path for path in paths if path.is_file())


def python_files(*tops: str) -> Iterator[Path]:
    """Python files below the named folders, migrations left out."""
    for path in tracked():
        inner = path.relative_to(ROOT)
        if path.suffix == ".py" and inner.parts[0] in tops and "migrations" not in inner.parts:
            yield path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def layers() -> dict[str, int]:
    """App label -> its height, from the import rules in pyproject.toml; 0 is the lowest."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    rows = list(reversed(contract["layers"]))
    return {name.strip(): height for height, row in enumerate(rows) for name in row.split("|")}
