"""One signed POST to a webhook. Owns the signature and where a message may go; touches no row.

An operator sets the address, yet it may come to name a machine that only this server reaches. So a name is
resolved once, every address of it must be a public one (unless WEBHOOK_ALLOW_PRIVATE), the connection goes
to an address that was looked at, and no redirect is followed.
"""

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

UNRESOLVED = "webhook_unresolved"
PRIVATE = "webhook_private"
UNREACHABLE = "webhook_unreachable"
TIMED_OUT = "webhook_timed_out"
TLS = "webhook_tls"
REFUSED = "webhook_refused"
BAD_URL = "bad_webhook_url"
ANSWER_READ = 4096


@dataclass(frozen=True)
class Outcome:
    """`error` is "" when a status of 200 to 299 came, else a code of texts."""

    status: int | None
    error: str


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC over the timestamp, a dot and the body, in hexadecimal."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


def check_url(url: str) -> str:
    """ "" for an address that may be used, else the code of what is wrong. Resolves no name."""
    parts = _split(url)
    if parts is None:
        return BAD_URL
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return ""
    return "" if _may_go_to(address) else PRIVATE


def send(url: str, body: bytes, *, secret: str, delivery_id: str, now_s: float, timeout_s: float) -> Outcome:
    """Send one message. Every fault is an outcome; `timeout_s` holds for connecting and for each read."""
    parts = _split(url)
    if parts is None:
        return Outcome(None, BAD_URL)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return Outcome(None, UNRESOLVED)
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    if not addresses or not all(_may_go_to(address) for address in addresses):
        return Outcome(None, PRIVATE)
    timestamp = str(int(now_s))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "heteroflow-alerts",
        "X-HeteroFlow-Delivery": delivery_id,
        "X-HeteroFlow-Timestamp": timestamp,
        "X-HeteroFlow-Signature": sign(secret, timestamp, body),
    }
    connection = _Pinned(host, port, str(addresses[0]), secure=secure, timeout_s=timeout_s)
    try:
        connection.request(
            "POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers
        )
        answer = connection.getresponse()
        answer.read(ANSWER_READ)
    except TimeoutError:
        return Outcome(None, TIMED_OUT)
    except ssl.SSLError:
        return Outcome(None, TLS)
    except (OSError, http.client.HTTPException):
        return Outcome(None, UNREACHABLE)
    finally:
        connection.close()
    return Outcome(answer.status, "" if 200 <= answer.status < 300 else REFUSED)


class _Pinned(http.client.HTTPConnection):
    """Connects to the address that was looked at, under the name that was asked for."""

    def __init__(self, host: str, port: int, address: str, *, secure: bool, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address, self._secure = address, secure
        self.default_port = 443 if secure else 80  # decides whether the Host header names the port

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    usable = parts.scheme in ("https", "http") and parts.hostname and not parts.username and port != 0
    clean = len(url) <= 500 and url.isascii() and url.isprintable() and " " not in url
    return parts if usable and clean else None


def _may_go_to(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if settings.WEBHOOK_ALLOW_PRIVATE:
        return True
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_global and not (mapped or address).is_multicast
