"""The environment of a production start on this machine, kept for other commands in production.env.

So that `DATA_DIR=... manage.py backup` or `make password` find its database. Standard library only.
"""

import shlex
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from apps.ops.preflight import write_private

FILE = "production.env"


def keep(root: Path, values: Mapping[str, str]) -> None:
    """Write the file, readable by its owner only; a shell can read it, too."""
    write_private(root / FILE, "".join(f"{name}={shlex.quote(text)}\n" for name, text in values.items()))


def take(environ: MutableMapping[str, str]) -> None:
    """Lay the kept values under the environment, where DATA_DIR is a production start's and nobody
    chose other settings."""
    folder = environ.get("DATA_DIR")
    if not folder or "DJANGO_SETTINGS_MODULE" in environ:
        return
    file = Path(folder) / FILE
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        name, _, text = line.partition("=")
        environ.setdefault(name, "".join(shlex.split(text)))
