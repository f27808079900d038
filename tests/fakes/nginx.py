"""Debian's nginx with our own site in front of a server that is one process, with TLS.

Owns the process and its files; the site is the one that is shipped, so what it does to a stream, a
heartbeat or a websocket is tried here too.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.core.clock import utc_now
from apps.ops.production import front


@dataclass(frozen=True)
class FrontProxy:
    """What is known of it outside."""

    url: str
    certificate: Path
    fingerprint: str


@contextmanager
def front_proxy(
    folder: Path, *, host: str, port: int, server_port: int, heartbeats_port: int | None = None
) -> Iterator[FrontProxy]:
    """TLS at host:port for the server on 127.0.0.1:server_port, which need not be there yet. Heartbeats go to
    another port where one is named."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.fail("the front proxy needs nginx of Debian")
    certificate = front.ensure_certificate(folder / "tls", [host], utc_now())
    main = front.write_configuration(
        folder / "nginx",
        listen=f"{host}:{port}",
        wsgi_ports=[server_port],
        asgi_ports=[server_port],
        gateway_ports=[server_port],
        certificate=certificate,
    )
    if heartbeats_port is not None:
        site = main.with_name("site.conf")
        agents = "    location /agent/ {"
        own = f"    location = /agent/v1/heartbeat {{ proxy_pass http://127.0.0.1:{heartbeats_port}; }}\n"
        assert site.read_text().count(agents) == 1
        site.write_text(site.read_text().replace(agents, own + agents))
    line = [program, "-e", "stderr", "-p", str(main.parent), "-c", str(main)]
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *line],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield FrontProxy(f"https://{host}:{port}", certificate[0], front.fingerprint(certificate[0]))
    finally:
        process.terminate()
        process.wait(10)
