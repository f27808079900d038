"""Where a call comes from, and whether its key may be used from there (TEN-06).

Pure. A proxy's word is believed only where the proxy itself is one of those that are trusted; what can not be
read counts as unknown, and from an unknown address a limited key opens nothing.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from apps.gateway.plane.core import errors
from apps.routing.table import Key

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
EVERYBODY = "*"


def find_address(peer: str, forwarded: bytes, trusted: tuple[str, ...]) -> Address | None:
    """The caller's address: the peer's own, or where the peer is a trusted proxy, the last one of its
    X-Forwarded-For that is none. `trusted`: addresses, networks, or `*` for everybody. None = not known."""
    address = _read(peer)
    told = [part.strip() for part in forwarded.decode("latin-1").split(",")] if forwarded else []
    while told and (EVERYBODY in trusted or (address is not None and is_within(address, trusted))):
        address = _read(told.pop())
    return address


def require_address(key: Key, address: Address | None) -> None:
    """Raises CallError 403 where the key has allowed addresses and this is none of them."""
    if key.allowed_networks is None:
        return
    if address is None or not is_within(address, key.allowed_networks):
        raise errors.address_not_allowed("an unknown address" if address is None else str(address))


def is_within(address: Address, networks: Iterable[str]) -> bool:
    return any(address in network for network in _networks(tuple(networks)))


@lru_cache(maxsize=4096)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """What is no network is in none."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)


def _read(text: str) -> Address | None:
    """An address, with or without a port; one of IPv4 inside IPv6 is the one of IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return inner or address
