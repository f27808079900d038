"""What `manage.py run_production` settles before Django reads its settings.

On top of apps/ops/prelaunch: Debian's programs, ports, the cluster, Redis' and nginx' files, and the
environment of all parts, which is also kept in DATA_DIR/production.env for other commands.
"""

import os
import re
import secrets
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apps.core.free_ports import free_ports
from apps.ops import docker_run, keys_file, prelaunch
from apps.ops.preflight import NotReady, write_private
from apps.ops.production import cluster, front, kept
from apps.ops.production.packages import Programs, find_programs

COPIES = 2  # of each process that may die
DATABASE = "heteroflow"
SETTINGS = "heteroflow.settings.production"


@dataclass(frozen=True)
class Place:
    """A start on one machine: its programs, ports and files."""

    programs: Programs
    root: Path
    postgres_port: int
    redis_port: int
    wsgi_ports: tuple[int, ...]
    asgi_ports: tuple[int, ...]
    gateway_ports: tuple[int, ...]
    certificate: Path
    fingerprint: str
    runtime: dict[str, Any] | None  # the local node's settings for Docker; None: local processes

    @property
    def cluster(self) -> Path:
        return self.root / "postgresql"

    @property
    def redis_configuration(self) -> Path:
        return self.root / "redis" / "redis.conf"

    @property
    def nginx_configuration(self) -> Path:
        return self.root / "nginx" / "nginx.conf"


prepared: list[Place] = []  # at most one: this process's


def prepare(environ: MutableMapping[str, str]) -> None:
    """Check and make all that the children stand on. Raises NotReady."""
    programs = find_programs(environ)
    prelaunch.prepare(environ, scheme="https")  # type: ignore[arg-type]  # os.environ, or a dict
    runtime = docker_run.chosen(environ)
    root = Path(environ["DATA_DIR"])
    require_plain(root)
    if os.geteuid() == 0:
        root.chmod(0o711)  # PostgreSQL's account passes through; what lies here has its own modes
    password = cluster.ensure_cluster(programs.postgresql, root / "postgresql", root / "postgresql.password")
    ports = free_ports(2 + 3 * COPIES)
    local = prelaunch.LOCAL_ADDRESS[environ["HOST"]]
    named = urlsplit(environ["PUBLIC_URL"]).hostname or "localhost"  # what is no address is refused later
    hosts = dict.fromkeys(["127.0.0.1", "::1", "localhost", socket.gethostname(), named])
    certificate = front.ensure_certificate(root / "tls", list(hosts), front.now())
    place = Place(
        programs,
        root,
        postgres_port=ports[0],
        redis_port=ports[1],
        wsgi_ports=ports[2 : 2 + COPIES],
        asgi_ports=ports[2 + COPIES : 2 + 2 * COPIES],
        gateway_ports=ports[2 + 2 * COPIES :],
        certificate=certificate[0],
        fingerprint=front.fingerprint(certificate[0]),
        runtime=runtime,
    )
    redis_password = _write_redis(place)
    (root / "static").mkdir(mode=0o700, exist_ok=True)
    host = f"[{environ['HOST']}]" if ":" in environ["HOST"] else environ["HOST"]
    front.write_configuration(
        root / "nginx",
        listen=f"{host}:{environ['PORT']}",
        wsgi_ports=place.wsgi_ports,
        asgi_ports=place.asgi_ports,
        gateway_ports=place.gateway_ports,
        certificate=certificate,
    )
    stored = keys_file.read_keys(root)
    values = {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DATA_DIR": str(root),
        "SECRET_KEY": stored["secret_key"],
        "ENCRYPTION_KEYS": ",".join(stored["encryption_keys"]),
        "DATABASE_URL": f"postgres://{cluster.OWNER}:{password}@127.0.0.1:{place.postgres_port}/{DATABASE}",
        "REDIS_URL": f"redis://:{redis_password}@127.0.0.1:{place.redis_port}/0",
        "ALLOWED_HOSTS": environ.get("ALLOWED_HOSTS") or f"localhost,127.0.0.1,[::1],{socket.gethostname()}",
        "PUBLIC_URL": environ["PUBLIC_URL"],
        "SERVER_CERTIFICATE_SHA256": place.fingerprint,
        "TRUSTED_PROXIES": "127.0.0.1",
        "STATIC_FROM_SOURCE": "true",  # no `collectstatic` for a trial
    }
    environ.update(values)
    # Of this process alone: it calls its own front proxy.
    environ["SSL_CERT_FILE"] = str(place.certificate)
    environ["LOCAL_URL"] = f"https://{local}:{environ['PORT']}"
    kept.keep(root, values)
    prepared.append(place)


def require_plain(root: Path) -> None:
    """Raises NotReady for a folder that nginx' and Redis' files can not name: a space ends a word there."""
    if signs := sorted(set(re.findall(r"[^\w./@+,:~-]", str(root)))):
        raise NotReady(
            f"DATA_DIR is {root}, and nginx and Redis read {' '.join(map(repr, signs))} otherwise than as "
            "a part of a name; choose a folder whose path is of letters, digits and . _ - alone."
        )


def _write_redis(place: Place) -> str:
    """Redis carries hints only, so it keeps nothing on the disk. Returns its password."""
    folder = place.redis_configuration.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    password = secrets.token_urlsafe(32)
    lines = [
        "bind 127.0.0.1",
        f"port {place.redis_port}",
        f"dir {folder}",
        f"requirepass {password}",
        'save ""',
        "appendonly no",
        "daemonize no",
        "set-proc-title no",
        "loglevel warning",
        "maxmemory 256mb",
        "maxmemory-policy volatile-ttl",
    ]
    write_private(place.redis_configuration, "\n".join(lines) + "\n")
    return password
