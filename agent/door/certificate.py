"""The door's certificate: self-signed, made once, known by its fingerprint (AGENT-16).

Owns `door.pem` (key and certificate, 0600) in the state directory. No authority signs it and no name
in it is checked: the server pins the fingerprint that the node's own heartbeat names.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.config import ConfigError
from agent.wholefile import write_whole

log = logging.getLogger("agent.door")
FILE = "door.pem"
_VALID = timedelta(days=36500)  # pinned, so its age proves nothing


class Certificate(msgspec.Struct, frozen=True):
    """What the listener needs. `sha256`: 64 hex digits over the certificate's DER form."""

    context: ssl.SSLContext
    sha256: str


def load_certificate(folder: Path) -> Certificate:
    """The kept certificate, or a new one where there is none or it is unreadable.

    A new one needs no care: its fingerprint goes out with the next heartbeat. Raises ConfigError when
    the disk refuses to read or keep it.
    """
    file = folder / FILE
    try:
        if not file.exists():
            _make(file)
        try:
            return _load(file)
        except (ssl.SSLError, ValueError):
            log.warning("the door's certificate is unreadable; a new one is made")
            _make(file)
            return _load(file)
    except OSError as error:
        raise ConfigError(f"{file}: the door's certificate cannot be kept: {error.strerror}.") from error


def _load(file: Path) -> Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(file)
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    der = certificate.public_bytes(serialization.Encoding.DER)
    return Certificate(context, hashlib.sha256(der).hexdigest())


def _make(file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "heteroflow-door")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    write_whole(file, pem)
