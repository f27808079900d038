"""One signed POST to a webhook. Owns the signature and where a message may go; touches no row.

An operator sets the address, yet it may come to name a machine that only this server reaches. So a name is
resolved once, every address of it must be a public one (unless WEBHOOK_ALLOW_PRIVATE), the connection goes
to an address that was looked at, and no redirect is followed.

One deadline holds for the whole of it: each wait gets what is left, so that a receiver that drips can't draw
it out. A look-up of a name can't be given a limit, so it has a thread of its own, which the sending leaves
behind when time is up; of one name there is at most one.
"""

import hashlib
import hmac
import http.client
import io
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from apps.core.addresses import Address, is_public, read_address

UNRESOLVED = "webhook_unresolved"
PRIVATE = "webhook_private"
UNREACHABLE = "webhook_unreachable"
TIMED_OUT = "webhook_timed_out"
TLS = "webhook_tls"
REFUSED = "webhook_refused"
BAD_URL = "bad_webhook_url"

Resolver = Callable[..., list[Any]]
"""As socket.getaddrinfo."""


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
    address = read_address(parts.hostname or "")
    return "" if address is None or _may_go_to(address) else PRIVATE


def send(
    url: str,
    body: bytes,
    *,
    secret: str,
    delivery_id: str,
    now_s: float,
    timeout_s: float,
    resolve: Resolver = socket.getaddrinfo,
) -> Outcome:
    """Send one message. Every fault is an outcome. It never takes longer than `timeout_s`, all together; what
    follows the answer's head is not read."""
    parts = _split(url)
    if parts is None:
        return Outcome(None, BAD_URL)
    limit = _Limit(timeout_s)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        found = _look_up(host, port, limit, resolve)
    except TimeoutError:
        return Outcome(None, TIMED_OUT)
    if not found:
        return Outcome(None, UNRESOLVED)
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    if not all(_may_go_to(address) for address in addresses):
        return Outcome(None, PRIVATE)
    timestamp = str(int(now_s))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "heteroflow-alerts",
        "X-HeteroFlow-Delivery": delivery_id,
        "X-HeteroFlow-Timestamp": timestamp,
        "X-HeteroFlow-Signature": sign(secret, timestamp, body),
    }
    connection = _Pinned(host, port, str(addresses[0]), secure=secure, limit=limit)
    try:
        connection.request(
            "POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers
        )
        answer = connection.getresponse()
    except TimeoutError:
        return Outcome(None, TIMED_OUT)
    except ssl.SSLError:
        return Outcome(None, TLS)
    except (OSError, http.client.HTTPException):
        return Outcome(None, UNREACHABLE)
    finally:
        connection.close()
    return Outcome(answer.status, "" if 200 <= answer.status < 300 else REFUSED)


class _Limit:
    """A moment by which all must be over."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """More than zero. Raises TimeoutError when it is over."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


_looked_up: set[str] = set()
_lock = threading.Lock()


def _look_up(host: str, port: int, limit: _Limit, resolve: Resolver) -> list[Any]:
    """The addresses of a name; empty where it has none. Raises TimeoutError, at once where the look-up of an
    earlier message still waits: however slow the resolver, threads don't pile up."""
    with _lock:
        if host in _looked_up:
            raise TimeoutError
        _looked_up.add(host)
    answer: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        finally:
            with _lock:
                _looked_up.discard(host)
        answer.put(found)

    threading.Thread(target=ask, name="webhook-resolver", daemon=True).start()
    try:
        return answer.get(timeout=limit.left_s())
    except queue.Empty:
        raise TimeoutError from None


class _Pinned(http.client.HTTPConnection):
    """Connects to the address that was looked at, under the name that was asked for."""

    def __init__(self, host: str, port: int, address: str, *, secure: bool, limit: _Limit) -> None:
        super().__init__(host, port)
        self._address, self._secure, self._limit = address, secure, limit
        self.default_port = 443 if secure else 80  # decides whether the Host header names the port

    def connect(self) -> None:
        sock = socket.create_connection((self._address, self.port), self._limit.left_s())
        try:
            if self._secure:
                sock.settimeout(self._limit.left_s())  # for the whole handshake
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = _Timed(sock, self._limit)


class _Timed(io.RawIOBase):
    """As much of a socket as http.client asks for; each wait gets what the limit leaves."""

    def __init__(self, sock: socket.socket, limit: _Limit) -> None:
        self._sock, self._limit = sock, limit

    def sendall(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            self._sock.settimeout(self._limit.left_s())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        self._sock.settimeout(self._limit.left_s())
        return self._sock.recv_into(target)

    def close(self) -> None:
        # The file itself stays open: http.client flushes its answer after it has closed the connection.
        self._sock.close()


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    usable = parts.scheme in ("https", "http") and parts.hostname and not parts.username and port != 0
    clean = len(url) <= 500 and url.isascii() and url.isprintable() and " " not in url
    return parts if usable and clean else None


def _may_go_to(address: Address) -> bool:
    return settings.WEBHOOK_ALLOW_PRIVATE or is_public(address)
