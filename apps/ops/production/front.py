"""The front proxy of a start on one machine: a certificate of its own, and nginx with deploy/'s site.

Owns both files under DATA_DIR. Knows no secret but the certificate's key.
"""

import hashlib
import ipaddress
import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from apps.ops.preflight import write_private

SITE = Path(__file__).resolve().parents[3] / "deploy" / "nginx" / "heteroflow.conf.template"
VALID = timedelta(days=3650)
# One process, in the foreground: it can not leave workers behind.
MAIN = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    default_type application/octet-stream;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


def ensure_certificate(folder: Path, hosts: Sequence[str], now: datetime) -> tuple[Path, Path]:
    """A self-made certificate for these hosts and its key, made once. PEM files; the key with mode 0600."""
    certificate_file, key_file = folder / "server.crt", folder / "server.key"
    if certificate_file.exists() and key_file.exists():
        return certificate_file, key_file
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "HeteroFlow on this machine")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key_file, secret.decode())
    write_private(certificate_file, certificate.public_bytes(serialization.Encoding.PEM).decode())
    return certificate_file, key_file


def fingerprint(certificate_file: Path) -> str:
    """SHA-256 of the certificate, as agents' `server_sha256` takes it."""
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def render_site(values: Mapping[str, str], site: Path = SITE) -> str:
    """deploy/'s site with its own names filled in; nginx' own `$names` stay."""
    return string.Template(site.read_text()).safe_substitute(values)


def write_configuration(
    folder: Path,
    *,
    listen: str,
    wsgi_ports: Sequence[int],
    asgi_ports: Sequence[int],
    gateway_ports: Sequence[int],
    certificate: tuple[Path, Path],
) -> Path:
    """nginx' main file and the site; returns the main file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    site = render_site(
        {
            "HETEROFLOW_LISTEN": listen,
            "HETEROFLOW_SERVER_NAME": "_",
            "HETEROFLOW_WSGI": _servers(wsgi_ports),
            "HETEROFLOW_ASGI": _servers(asgi_ports),
            "HETEROFLOW_GATEWAY": _servers(gateway_ports),
            "HETEROFLOW_CERTIFICATE": str(certificate[0]),
            "HETEROFLOW_CERTIFICATE_KEY": str(certificate[1]),
        }
    )
    (folder / "site.conf").write_text(site)
    main = folder / "nginx.conf"
    main.write_text(MAIN.format(folder=folder))
    return main


def _servers(ports: Sequence[int]) -> str:
    return " ".join(f"server 127.0.0.1:{port} fail_timeout=1s;" for port in ports)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def now() -> datetime:
    """For the certificate's dates, before Django's clock can be read."""
    return datetime.now(UTC)
