"""Opens the door as the settings say, and tells how the gateway reaches this node.

Owns the choice between `direct` and `door`, and the address that goes out with the heartbeat.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

from agent.config import ConfigError, Settings
from agent.contract.door import derive_key
from agent.contract.messages import DialTarget, DoorTarget
from agent.door.certificate import load_certificate
from agent.door.listener import Door, Limits
from agent.door.targets import FindPort


def open_door(
    settings: Settings, folder: Path, secret_sha256: str, find_port: FindPort
) -> tuple[Door | None, DialTarget | DoorTarget]:
    """The open door (None where engines are dialled directly) and what the heartbeat says of it.

    `folder` keeps the certificate. Raises ConfigError when it can not listen.
    """
    if not settings.has_door:
        return None, DialTarget(host=settings.dial_host)
    certificate = load_certificate(folder)
    door = Door(
        key=derive_key(secret_sha256),
        certificate=certificate,
        find_port=find_port,
        engine_host=settings.engine_host,
        limits=Limits(
            connections=settings.door_connections,
            line_s=settings.door_line_s,
            connect_s=settings.door_connect_s,
            linger_s=settings.door_linger_s,
        ),
    )
    try:
        door.open(settings.door_host, settings.door_port)
    except OSError as error:
        raise ConfigError(
            f"door_host = {settings.door_host!r}, door_port = {settings.door_port}: cannot listen there: "
            f"{error.strerror or error}. Choose another, or door_port = 0 for any free one."
        ) from error
    return door, DoorTarget(advertised_host(settings), door.port, certificate.sha256)


def advertised_host(settings: Settings) -> str:
    """The host by which the server dials the door: as set, else the one that it listens on, else this
    machine's address towards the server. Raises ConfigError where none can be told."""
    if settings.door_advertise_host:
        return settings.door_advertise_host
    if not _is_every_address(settings.door_host):
        return settings.door_host
    parts = urlsplit(settings.server_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            parts.hostname, port, type=socket.SOCK_DGRAM, family=_family(settings.door_host)
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            "door_advertise_host is not set, and this machine's address towards the server can not be "
            f"told ({error.strerror or error}). Set it to the address by which the server reaches this "
            "machine."
        ) from error


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_UNSPEC if ":" in host else socket.AF_INET
