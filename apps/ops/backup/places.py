"""The folders of a restore: what comes is laid beside what is there, then they change places.

Works inside each folder, since it may be a mount point, which nobody can rename, under a root that is
read-only. What a killed restore left lies in the same corner, and the next one clears it.
"""

import shutil
from pathlib import Path

CORNER = ".restore"
# Of the file system, where the folder is a mount point; ours are never named so.
FOREIGN = {CORNER, "lost+found"}


def make_corner(folder: Path) -> Path:
    """An empty corner in the folder; both are made where they are missing. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    clear_corner(folder)
    corner = folder / CORNER
    corner.mkdir(mode=0o700)
    return corner


def clear_corner(folder: Path) -> None:
    """Raises OSError."""
    if (folder / CORNER).exists():
        shutil.rmtree(folder / CORNER)


def swap(folder: Path, coming: Path) -> None:
    """All that is in `coming`, which lies in the folder's corner, is in the folder; what was there is in
    the corner. Raises OSError."""
    former = folder / CORNER / "former"
    former.mkdir(mode=0o700)
    for path in contents(folder):
        path.rename(former / path.name)
    for path in contents(coming):
        path.rename(folder / path.name)


def contents(folder: Path) -> list[Path]:
    """What of the folder is ours, in an order that does not change."""
    return sorted(path for path in folder.iterdir() if path.name not in FOREIGN)
