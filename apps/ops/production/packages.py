"""The servers that come from Debian packages: where they are, and what to install where they are not.

Standard library only: runs before Django's settings. Never installs anything.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from apps.ops.preflight import NotReady

PACKAGES = {"postgres": "postgresql", "redis-server": "redis-server", "nginx": "nginx-light"}
POSTGRESQL_HOMES = Path("/usr/lib/postgresql")  # Debian keeps each major version's programs apart
ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Programs:
    """Paths of the executables. `postgresql`: the folder of one version's programs."""

    postgresql: Path
    redis: Path
    nginx: Path


def find_programs(environ: Mapping[str, str], homes: Path = POSTGRESQL_HOMES) -> Programs:
    """Raises NotReady that names every Debian package that is missing."""
    path = f"{environ.get('PATH') or os.defpath}:{ADMIN_PATH}"
    found = {
        "postgres": find_postgresql(path, homes),
        "redis-server": _which("redis-server", path),
        "nginx": _which("nginx", path),
    }
    missing = [PACKAGES[name] for name, place in found.items() if place is None]
    postgresql, redis, nginx = found.values()
    if postgresql is None or redis is None or nginx is None:
        names = " ".join(missing)
        raise NotReady(
            f"The production profile needs what is not installed here: {', '.join(missing)}; install by: "
            f"apt-get install --no-install-recommends {names}"
        )
    return Programs(postgresql, redis, nginx)


def find_postgresql(path: str, homes: Path = POSTGRESQL_HOMES) -> Path | None:
    """The folder of the newest version's programs; None where there is none."""
    versions = _by_version(
        home for home in homes.glob("*/bin") if (home / "postgres").exists() and (home / "initdb").exists()
    )
    if versions:
        return versions[-1]
    other = _which("postgres", path)
    return other.resolve().parent if other is not None else None


def find_client(program: str, path: str, homes: Path = POSTGRESQL_HOMES) -> Path | None:
    """The newest pg_dump, pg_restore or psql: Debian has clients without a server of their version."""
    found = _by_version(home for home in homes.glob("*/bin") if (home / program).exists())
    return found[-1] / program if found else _which(program, path)


def _by_version(homes: Iterable[Path]) -> list[Path]:
    return sorted(homes, key=lambda home: int(home.parent.name) if home.parent.name.isdigit() else 0)


def _which(name: str, path: str) -> Path | None:
    found = shutil.which(name, path=path)
    return Path(found) if found else None
